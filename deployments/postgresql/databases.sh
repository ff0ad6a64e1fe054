#!/bin/sh
# A user and its database for Prefect and for MLflow, and a database for MLflow's accounts. Run once, on an empty server:
# by the postgres image as /docker-entrypoint-initdb.d/databases.sh, or by hand with PGHOST, PGPORT and PGPASSWORD set.
set -eu
: "${POSTGRES_USER:?}" "${PREFECT_DATABASE_PASSWORD:?}" "${MLFLOW_DATABASE_PASSWORD:?}"

# By standard input and variables: a password on a command line is seen by everybody on the machine.
psql --no-psqlrc --quiet --set=ON_ERROR_STOP=1 --username="$POSTGRES_USER" --dbname=postgres <<'SQL'
\set prefect_password `printenv PREFECT_DATABASE_PASSWORD`
\set mlflow_password `printenv MLFLOW_DATABASE_PASSWORD`
CREATE ROLE prefect LOGIN PASSWORD :'prefect_password';
CREATE ROLE mlflow LOGIN PASSWORD :'mlflow_password';
CREATE DATABASE prefect OWNER prefect;
CREATE DATABASE mlflow OWNER mlflow;
CREATE DATABASE mlflow_auth OWNER mlflow;
-- Nobody but the owner, who needs no grant, may connect.
REVOKE ALL ON DATABASE prefect, mlflow, mlflow_auth FROM PUBLIC;
\connect prefect
-- Prefect searches names by parts of words; its migration makes the extension if it may.
CREATE EXTENSION IF NOT EXISTS pg_trgm;
SQL
