-- A call without recipients goes to these people: only the tester.
SELECT d.device_id
FROM devices AS d
WHERE d.email = 'customer1@example.com'
