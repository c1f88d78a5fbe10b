-- Every phone and browser. A journey takes no one twice, so the query need not remember who was there before.
SELECT d.device_id, d.platform
FROM devices AS d
WHERE d.platform IN ('android', 'chrome', 'firefox')
