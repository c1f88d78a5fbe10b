SELECT d.device_id, d.platform, d.language
FROM devices AS d
WHERE d.platform = 'email'
