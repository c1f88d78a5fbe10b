# One image for every Sendoff process of docker-compose.yml: Airflow's components, the receiver, the local service.
FROM python:3.12-slim

ENV AIRFLOW_HOME=/opt/airflow PYTHONDONTWRITEBYTECODE=1
# Volumes begin as copies of these folders, and so belong to the user who writes to them.
RUN useradd --create-home --uid 50000 sendoff && \
    install --directory --owner sendoff $AIRFLOW_HOME $AIRFLOW_HOME/kept $AIRFLOW_HOME/login
WORKDIR /opt/sendoff
COPY constraints.txt pyproject.toml README.md LICENSE CHANGELOG.md ./
COPY include include
COPY plugins plugins
# Celery is what hands Airflow's tasks to its workers here; nothing else of Sendoff needs it.
RUN pip install --no-cache-dir --compile -c constraints.txt '.[airflow,celery,postgres,service]'
COPY docker/set-up docker/try-out docker/is-up docker/
COPY dags dags
USER sendoff
