-- With the column platform, the report can tell a missing browser from a phone that never reports deliveries.
SELECT d.device_id, d.platform
FROM devices AS d
JOIN consents AS c ON c.customer_id = d.customer_id
WHERE d.platform IN ('android', 'ios', 'chrome')
  AND c.purpose = 'marketing' AND c.channel = 'push' AND c.granted = 1
