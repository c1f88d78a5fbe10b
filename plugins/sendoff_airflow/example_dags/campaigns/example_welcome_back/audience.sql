SELECT device_id, platform
FROM devices
WHERE platform IN ('android', 'ios')
