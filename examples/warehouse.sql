-- A small, invented shop in SQLite: 200 customers, each with a phone, a browser, an email address and a number.
-- Dates are relative to the day you create it, so that a campaign for today finds its people.

CREATE TABLE customers (
    customer_id INTEGER PRIMARY KEY, user_id TEXT NOT NULL, first_name TEXT NOT NULL, plan TEXT NOT NULL,
    language TEXT NOT NULL, time_zone TEXT);  -- some people have no time zone

-- One endpoint that the service can reach: an app, a browser, an email address or a number.
CREATE TABLE devices (
    device_id INTEGER PRIMARY KEY, customer_id INTEGER NOT NULL, platform TEXT NOT NULL,
    email TEXT, mobile_number TEXT, language TEXT NOT NULL, time_zone TEXT);

CREATE TABLE consents (
    customer_id INTEGER NOT NULL, purpose TEXT NOT NULL, channel TEXT NOT NULL, granted INTEGER NOT NULL,
    PRIMARY KEY (customer_id, purpose, channel));

CREATE TABLE purchases (customer_id INTEGER NOT NULL, purchased_at TEXT NOT NULL, amount REAL NOT NULL);

CREATE TABLE orders (
    order_id INTEGER PRIMARY KEY, customer_id INTEGER NOT NULL, state TEXT NOT NULL, changed_at TEXT NOT NULL,
    tracking_url TEXT);

INSERT INTO customers
WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 200)
SELECT
    n,
    'C' || printf('%04d', n),
    CASE n % 6
        WHEN 0 THEN 'Grace' WHEN 1 THEN 'Hugo' WHEN 2 THEN 'Greta'
        WHEN 3 THEN 'Noah' WHEN 4 THEN 'Inès' ELSE 'Anton' END,
    CASE WHEN n % 4 = 0 THEN 'gold' ELSE 'basic' END,
    CASE n % 3 WHEN 0 THEN 'en' WHEN 1 THEN 'fr' ELSE 'de' END,
    CASE
        WHEN n % 10 = 0 THEN NULL
        WHEN n % 3 = 0 THEN CASE n % 2 WHEN 0 THEN 'Europe/Dublin' ELSE 'America/New_York' END
        WHEN n % 3 = 1 THEN 'Europe/Paris'
        ELSE 'Europe/Berlin' END
FROM numbers;

INSERT INTO devices
SELECT 100000 + 10 * customer_id + 1, customer_id, CASE customer_id % 2 WHEN 0 THEN 'android' ELSE 'ios' END,
    NULL, NULL, language, time_zone FROM customers
UNION ALL
SELECT 100000 + 10 * customer_id + 2, customer_id,
    CASE customer_id % 3 WHEN 0 THEN 'chrome' WHEN 1 THEN 'firefox' ELSE 'safari' END,
    NULL, NULL, language, time_zone FROM customers
UNION ALL
SELECT 100000 + 10 * customer_id + 3, customer_id, 'email',
    'customer' || customer_id || '@example.com', NULL, language, time_zone FROM customers
UNION ALL
SELECT 100000 + 10 * customer_id + 4, customer_id, 'sms',
    NULL, '+3538655500' || printf('%03d', customer_id), language, time_zone FROM customers;

-- Four in seven gave consent.
INSERT INTO consents
SELECT customer_id, 'marketing', channel, CASE WHEN customer_id % 7 < 4 THEN 1 ELSE 0 END
FROM customers
CROSS JOIN (SELECT 'push' AS channel UNION ALL SELECT 'email' UNION ALL SELECT 'sms');

-- Half of them bought something this month, the others long ago.
INSERT INTO purchases
SELECT customer_id, datetime('now', CASE WHEN customer_id % 4 < 2 THEN '-200 days' ELSE '-20 days' END), 25.0 + customer_id
FROM customers;

-- A third has an order that was shipped or became ready since yesterday. A few returned something.
INSERT INTO orders
SELECT
    5000 + customer_id,
    customer_id,
    CASE customer_id % 3 WHEN 0 THEN 'shipped' WHEN 1 THEN 'ready' ELSE 'returned' END,
    datetime('now', CASE WHEN customer_id % 3 = 2 THEN '-9 days' ELSE '-1 day' END),
    'https://parcels.example.com/' || (5000 + customer_id)
FROM customers
WHERE customer_id % 3 <> 2 OR customer_id % 4 = 0;
