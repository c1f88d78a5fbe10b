-- Orders that became ready in the period, which is the time since the previous run.
SELECT d.device_id, d.platform
FROM orders AS o
JOIN devices AS d ON d.customer_id = o.customer_id AND d.platform = 'sms'
WHERE o.state = 'ready' AND o.changed_at >= :period_start AND o.changed_at < :period_end
