#!/bin/sh
# Finds what the build needs and installs what is missing: with apt as root or by password-less sudo, with brew on macOS.
# Where it may not, it prints the one command that does, and fails. Silent and without network when all is there.
set -eu
. "$(dirname -- "$0")/lib.sh"

has_pip() {
    [ -n "${PACELINE_MLX_DIR:-}" ] && return 0 # an MLX of the user's own: there is no wheel to fetch
    # `python3 -m pip --version` says the same ten times slower.
    python3 -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("pip") is None)' 2>/dev/null || have pip3
}

has_libclang() {
    [ -n "${LIBCLANG_PATH:-}" ] && return 0
    # clang brings the compiler's own headers (stddef.h), which libclang alone does not.
    have clang || ls /usr/lib/llvm-*/bin/clang >/dev/null 2>&1 || return 1
    for lib in /usr/lib/llvm-*/lib /usr/lib/*-linux-gnu /usr/lib /usr/lib64 /usr/local/lib; do
        for file in "$lib"/libclang.so* "$lib"/libclang-[0-9]*.so*; do
            [ -e "$file" ] && return 0
        done
    done
    return 1
}

has_openblas() {
    # An unknown file's bare name comes back.
    case $(cc -print-file-name=libopenblas.so 2>/dev/null) in
        /*) return 0 ;;
        *) return 1 ;;
    esac
}

# The names that tests/harness/browser.rs knows.
has_browser() {
    for name in chromium-headless-shell chrome-headless-shell chromium chromium-browser google-chrome google-chrome-stable; do
        if have "$name"; then return 0; fi
    done
    return 1
}

# The library that tests/lives/clock.rs loads.
has_faketime() {
    ls /usr/lib/*/faketime/libfaketimeMT.so.1 >/dev/null 2>&1
}

may_install() { [ "$(id -u)" = 0 ] || { have sudo && sudo -n true 2>/dev/null; }; }

# apt ARGUMENTS...: apt-get, as root.
# shellcheck disable=SC2086
apt() {
    as_root=
    [ "$(id -u)" = 0 ] || as_root="sudo -n"
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 "$@"
}

linux() {
    missing=
    if ! have cc || ! have c++; then missing="$missing g++"; fi
    have make || missing="$missing make"
    has_libclang || missing="$missing clang libclang-dev"
    has_openblas || missing="$missing libopenblas-dev"
    have python3 || missing="$missing python3"
    has_pip || missing="$missing python3-pip"
    # A test of the units in deploy/ wants systemd's own check. Nothing is built with it: where it may not be installed, that
    # test alone fails.
    if ! have systemd-analyze && have apt-get && may_install; then missing="$missing systemd"; fi
    # Tests type the lines of the documents that fetch with curl. The same holds for it.
    if ! have curl && have apt-get && may_install; then missing="$missing curl"; fi
    # The tests of the status page want a browser, and fail on CI without one. Systems that lack this package bring another browser.
    if [ -n "${CI:-}" ] && ! has_browser && have apt-get && may_install; then
        browser_is_known() { apt-cache show chromium-headless-shell >/dev/null 2>&1; }
        browser_is_known || apt update || true
        if browser_is_known; then missing="$missing chromium-headless-shell"; fi
    fi
    # A test of make test-more wants a clock that jumps, and fails without one.
    if [ -n "${CI:-}" ] && ! has_faketime && have apt-get && may_install; then missing="$missing libfaketime"; fi
    # Tests of make test-more want a clean system, and fail on CI without one.
    if [ -n "${CI:-}" ] && ! have debootstrap && have apt-get && may_install; then missing="$missing debootstrap"; fi
    [ -n "$missing" ] || return 0

    have apt-get || die "Missing, by their names in Debian:$missing. Install them with this system's package manager and try again."
    may_install || die "System packages are missing. This installs them: sudo apt-get update && sudo apt-get install -y$missing"
    say "Installing system packages:$missing"
    # shellcheck disable=SC2086
    install() { apt install -y --no-install-recommends $missing; }
    # Package lists are fetched when there are none, and again when what they name is no longer served.
    # shellcheck disable=SC2086
    apt install --simulate --no-install-recommends $missing >/dev/null 2>&1 || apt update
    install || { apt update && install; } || die "apt-get could not install:$missing"
}

macos() {
    # Brings clang, libclang, make and a python3 with pip. Its installer is a window, so nothing can be done here.
    xcode-select -p >/dev/null 2>&1 || die "Xcode's command line tools are missing. This installs them: xcode-select --install"
    # mlx-c's headers want __bf16, which clang knows for Apple's processors from version 16 on: Xcode 15.
    printf '__bf16 value;\n' | "${CXX:-c++}" -x c++ -fsyntax-only - 2>/dev/null ||
        die "The C++ compiler does not know __bf16: expected Xcode 15 or newer, found $("${CXX:-c++}" --version 2>/dev/null | head -n 1). Update Xcode's command line tools in System Settings, Software Update."
    if ! have python3 || ! has_pip; then
        have brew || die "A python3 with pip is missing. This installs one, with Homebrew from https://brew.sh: brew install python3"
        say "Installing with Homebrew: python3"
        brew install python3
    fi
}

rust() {
    oldest=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    have cargo || die "Rust is missing. This installs it: curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y"
    # RUSTUP_AUTO_INSTALL=0: a cargo that is there is used as it is; nothing is fetched to learn its version.
    found=$(RUSTUP_AUTO_INSTALL=0 cargo --version) || die "cargo does not run. If rustup manages it, this helps: rustup default stable"
    found=${found#cargo }
    found=${found%% *}
    minor=${found#*.}
    if [ "${found%%.*}" -lt "${oldest%%.*}" ] || { [ "${found%%.*}" -eq "${oldest%%.*}" ] && [ "${minor%%.*}" -lt "${oldest#*.}" ]; }; then
        die "Rust $oldest or newer is needed, found $found. If rustup manages it, this helps: rustup update stable"
    fi
}

# All crates of Cargo.lock for this machine, those of the tests too: a build of the programs alone fetches fewer, and
# then the tests cannot be built without a network. What is missing without one may not be needed by the recipe at hand.
# shellcheck disable=SC2086
crates() {
    host=$(rustc -vV | sed -n 's/^host: //p')
    cargo fetch --quiet --offline --locked --target "$host" 2>/dev/null && return 0
    say "Fetching the crates of Cargo.lock"
    cargo fetch $LOCKED --target "$host" || say "Not all crates could be fetched; going on with those that are here."
}

case $(uname -s) in
    Linux) linux ;;
    Darwin) macos ;;
    *) die "Paceline runs on macOS and Linux, this is $(uname -s)." ;;
esac
rust
crates
