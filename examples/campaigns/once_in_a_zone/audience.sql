SELECT d.device_id, d.platform
FROM devices AS d
JOIN consents AS c ON c.customer_id = d.customer_id
WHERE d.platform IN ('android', 'ios')
  AND c.purpose = 'marketing' AND c.channel = 'push' AND c.granted = 1
