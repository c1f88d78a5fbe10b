-- Email addresses of customers who read English or French and agreed to marketing by email.
SELECT d.device_id, d.platform, d.language
FROM devices AS d
JOIN consents AS c ON c.customer_id = d.customer_id
WHERE d.platform = 'email'
  AND d.language IN ('en', 'fr')
  AND c.purpose = 'marketing' AND c.channel = 'email' AND c.granted = 1
