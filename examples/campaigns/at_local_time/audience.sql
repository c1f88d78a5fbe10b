SELECT d.device_id, d.platform, d.time_zone
FROM devices AS d
WHERE d.platform IN ('android', 'ios')
