#!/bin/sh
# Builds the programs, fetches the router smg into an environment of its own, and runs both until Ctrl-C: see
# deploy/many/try.sh. PROFILE=dev uses the build that the tests use. PORT is where clients reach the router.
set -eu
. "$(dirname -- "$0")/lib.sh"

headline "Building (profile ${PROFILE:-release})"
build_programs "${PROFILE:-release}"
headline "Fetching smg"
routers=$(target_dir)/debug/http-clients
mkdir -p "$routers"
sh scripts/http-clients.sh "$routers" smg
PATH=$bin:$routers/smg/bin:$PATH
export PATH
headline "Two services behind smg"
exec sh deploy/many/try.sh "${PORT:-30000}"
