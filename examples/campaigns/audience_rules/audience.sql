SELECT d.device_id, d.platform
FROM devices AS d
WHERE d.platform IN ('android', 'ios')
  AND NOT EXISTS (
      SELECT 1 FROM purchases AS p
      WHERE p.customer_id = d.customer_id
        AND p.purchased_at >= datetime(:period_end, '-90 days') AND p.purchased_at < :period_end)
