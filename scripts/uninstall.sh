#!/bin/sh
# Removes what `make install` installed below $DESTDIR$PREFIX (by default /usr/local): the files of its list, and the
# directories that are empty then. Models and settings of users stay.
set -eu
. "$(dirname -- "$0")/lib.sh"

PREFIX=${PREFIX:-/usr/local}
case $PREFIX in /*) ;; *) die "PREFIX: expected an absolute path, found $PREFIX" ;; esac
exec sh deploy/install.sh --uninstall "${DESTDIR:-}${PREFIX%/}"
