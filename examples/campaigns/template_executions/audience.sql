SELECT c.user_id, c.first_name, o.tracking_url
FROM orders AS o
JOIN customers AS c ON c.customer_id = o.customer_id
WHERE o.state = 'shipped' AND o.changed_at >= :period_start AND o.changed_at < :period_end
