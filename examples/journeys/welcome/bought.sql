-- Devices of customers who bought something in the last thirty days.
SELECT d.device_id
FROM devices AS d
JOIN purchases AS p ON p.customer_id = d.customer_id
WHERE p.purchased_at >= date('now', '-30 days')
