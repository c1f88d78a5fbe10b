SELECT d.device_id
FROM orders AS o
JOIN devices AS d ON d.customer_id = o.customer_id
WHERE o.state = 'returned' AND o.changed_at >= datetime(:period_end, '-30 days')
