-- The column platform lets the report tell a browser that was not reached from a phone that never says.
SELECT d.device_id, d.platform
FROM devices AS d
JOIN consents AS c ON c.customer_id = d.customer_id
WHERE d.platform IN ('android', 'ios', 'chrome')
  AND c.purpose = 'marketing' AND c.channel = 'push' AND c.granted = 1
