SELECT d.device_id
FROM devices AS d
WHERE d.platform IN ('android', 'ios')
