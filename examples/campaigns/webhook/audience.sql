-- One device of each member, because there is one call per device.
SELECT min(d.device_id) AS device_id
FROM devices AS d
JOIN customers AS c ON c.customer_id = d.customer_id
WHERE c.plan = 'gold'
GROUP BY c.customer_id
