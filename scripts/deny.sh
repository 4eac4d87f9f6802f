#!/bin/sh
# cargo-deny's checks named as arguments, by deny.toml. Where cargo-deny is not installed that is said, and only an audit,
# which is nothing else, fails for it.
set -eu
. "$(dirname -- "$0")/lib.sh"

if have cargo-deny; then
    # Advisories come over the network; the others need nothing but what cargo has fetched for the build. An unused wrapper
    # is a permission that is not used, which is no reason to warn.
    exec cargo deny check --allow unused-wrapper "$@"
fi
say "cargo-deny is not installed, so this was not checked: $*. This installs it: cargo install cargo-deny --locked"
case " $* " in
    *" advisories "*) exit 1 ;;
esac
