-- The recipients: invented devices, which need no table. Replace them with a query on your warehouse, such as:
--   SELECT device_id, platform FROM devices WHERE created_at >= :period_start AND created_at < :period_end
WITH devices (device_id, platform) AS (
    VALUES (1, 'android'), (2, 'android'), (3, 'android'), (4, 'chrome'), (5, 'chrome'), (6, 'chrome')
)
SELECT device_id, platform FROM devices
