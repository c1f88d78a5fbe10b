SELECT d.device_id, d.platform
FROM devices AS d
WHERE d.platform IN ('android', 'ios')
