-- Run once by the PostgreSQL image: each has its own database, and nobody touches Airflow's.
CREATE DATABASE airflow;
CREATE DATABASE sendoff;
CREATE DATABASE service;
CREATE DATABASE warehouse;
