# One image for every Sendoff process of docker-compose.yml: Airflow's components, the receiver, the local service.
FROM python:3.12-slim

ENV AIRFLOW_HOME=/opt/airflow
RUN useradd --create-home --uid 50000 sendoff && install --directory --owner sendoff $AIRFLOW_HOME
WORKDIR /opt/sendoff
COPY constraints.txt pyproject.toml README.md LICENSE CHANGELOG.md ./
COPY include include
COPY plugins plugins
# Celery is what hands Airflow's tasks to its workers here; nothing else of Sendoff needs it.
RUN pip install --no-cache-dir -c constraints.txt '.[airflow,postgres,service]' \
    'apache-airflow-providers-celery>=3.26,<4' 'celery[redis]'
COPY dags dags
COPY docker/set-up docker/set-up
USER sendoff
