SELECT device_id, order_number
FROM orders
WHERE shipped_at >= :period_start AND shipped_at < :period_end
