#!/bin/sh
# Makes the work pool, applies prefect.yaml, adds its schedules and the automations; again whenever it changes: the pool then
# has this template again, and is not paused. In the image: a deployment remembers the folder it was made in, and that is
# /opt/rampline there. Wants PREFECT_API_URL, and PREFECT_API_AUTH_STRING where the server has one.
#   deploy.sh                                                           a process pool
#   deploy.sh kubernetes deployments/kubernetes/base-job-template.json  a Kubernetes pool
set -eu
cd "$(dirname "$0")/.."
pool_type=${1:-process} template=${2:-deployments/process-job-template.json}
prefect --no-prompt work-pool create rampline --type "$pool_type" --overwrite --base-job-template "$template"
prefect --no-prompt deploy --all
python -P -m rampline.servers.deployments
