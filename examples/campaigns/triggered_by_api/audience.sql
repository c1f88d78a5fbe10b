-- Called without people of its own, it goes to these: nobody but the one who tests it.
SELECT d.device_id
FROM devices AS d
WHERE d.email = 'customer1@example.com'
