-- Devices of people who bought something once, but not in the 90 days before the period's end, and who agreed to
-- marketing by push. Written for SQLite; on PostgreSQL the limit is: :period_end - interval '90 days'
SELECT d.device_id, d.platform, d.language, d.time_zone
FROM devices AS d
WHERE d.platform IN ('android', 'ios', 'chrome', 'firefox', 'safari')
  AND EXISTS (
      SELECT 1 FROM consents AS c
      WHERE c.customer_id = d.customer_id AND c.purpose = 'marketing' AND c.channel = 'push' AND c.granted = 1)
  AND EXISTS (
      SELECT 1 FROM purchases AS p
      WHERE p.customer_id = d.customer_id AND p.purchased_at < datetime(:period_end, '-90 days'))
  AND NOT EXISTS (
      SELECT 1 FROM purchases AS p
      WHERE p.customer_id = d.customer_id
        AND p.purchased_at >= datetime(:period_end, '-90 days') AND p.purchased_at < :period_end)
