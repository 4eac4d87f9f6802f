#!/bin/sh
# Type check and lints of the whole workspace for macOS on Apple Silicon, tests included. On a Mac this is plain clippy. On
# Linux the script first fetches what a cross check needs, into a cache outside the tree; it installs nothing in the system.
#
#   sh scripts/check-macos.sh          clippy with -D warnings, all targets
#   sh scripts/check-macos.sh build    generates the code of all libraries, which also evaluates their constants
#
# Clippy runs the compiler's own type and borrow check, so a separate `cargo check` would find nothing more.
#
# What is fetched, and from where:
#   Rust's standard library for the target: by rustup if that works. Otherwise a compiler and the library's source, both of
#     one version, from Debian's rustc-web packages; the script then compiles the library once.
#   C and C++ headers of macOS, and a compiler for them: zig, from the Python package index.
#   libclang for bindgen: from the same place. Clang 14 and 15 do not know __bf16 on Apple's processors.
#   MLX's wheel for macOS: by the build script of mlx-sys, as in every build.
#
#   PACELINE_CHECK_MACOS_STD    "rustup" or "debian": use only this source of the standard library
set -eu
. "$(dirname -- "$0")/lib.sh"

TARGET=aarch64-apple-darwin
ZIG=0.17.1
LIBCLANG=18.1.1
# The oldest macOS that MLX supports. mlx-sys then takes the wheel of that version and does not ask for this machine's.
MACOS=14.0

mode=${1:-clippy}
case $mode in
    clippy | build) ;;
    *) die "check-macos: expected clippy or build, found $mode" ;;
esac

if [ "$(uname -s)" = Darwin ]; then
    # shellcheck disable=SC2086
    case $mode in
        clippy) exec cargo clippy $LOCKED --workspace --all-targets -- -D warnings ;;
        build) exec cargo build $LOCKED --workspace --lib ;;
    esac
fi

cache=${XDG_CACHE_HOME:-$HOME/.cache}/paceline/check-macos
mkdir -p "$cache"
# A part is made in this directory and moved to its place when it is whole. An interrupted run, or two runs at once,
# then leave nothing half made.
scratch=$(mktemp -d "$cache/.making-XXXXXX")
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# place MADE NAME: moves a finished directory to its name in the cache, unless another run was first.
place() {
    [ -d "$cache/$2" ] || mv "$1" "$cache/$2" || [ -d "$cache/$2" ]
}

# wrapper NAME: makes an executable of standard input.
# The wrappers are bash. dash drops variables with a hyphen in their names from the environment, and cargo passes such
# variables to the compiler (CARGO_BIN_EXE_paceline-pull).
wrapper() {
    cat >"$1"
    chmod +x "$1"
}

# --- C, C++ and libclang -------------------------------------------------------------------------------------------

c_tools() {
    tools=zig-$ZIG-libclang-$LIBCLANG
    if [ ! -d "$cache/$tools" ]; then
        say "check-macos: fetching zig $ZIG and libclang $LIBCLANG with pip"
        if python3 -m pip --version >/dev/null 2>&1; then pip="python3 -m pip"; else pip=pip3; fi
        # shellcheck disable=SC2086
        $pip install --quiet --root-user-action=ignore --disable-pip-version-check --no-deps --only-binary=:all: --target "$scratch/tools" \
            "ziglang==$ZIG" "libclang==$LIBCLANG" ||
            die "check-macos: pip cannot fetch ziglang==$ZIG and libclang==$LIBCLANG: expected its package index to be reachable; check the network and pip's configuration"
        place "$scratch/tools" "$tools"
    fi
    tools=$cache/$tools
    zig=$tools/ziglang
    scratch_of_zig=$cache/zig-cache
    mkdir -p "$scratch_of_zig"
    mkdir "$scratch/bin"
    for language in cc c++; do
        # The cc crate spells the target as Apple's clang does, and zig does not know that spelling.
        wrapper "$scratch/bin/zig-$language" <<WRAPPER
#!/usr/bin/env bash
args=() skip=
for arg in "\$@"; do
    if [ -n "\$skip" ]; then skip=; continue; fi
    case "\$arg" in
        --target=* | -mmacosx-version-min=*) ;;
        # zig takes what follows for an option it does not know.
        --) ;;
        # Asked for its version, zig leaves an empty file in the current directory, which is that of a package.
        --version) cd "$scratch_of_zig"; args+=("\$arg") ;;
        -arch | -isysroot | -target) skip=1 ;;
        *) args+=("\$arg") ;;
    esac
done
exec "$zig/zig" $language -target aarch64-macos.$MACOS "\${args[@]}"
WRAPPER
    done
    wrapper "$scratch/bin/zig-ar" <<WRAPPER
#!/usr/bin/env bash
exec "$zig/zig" ar "\$@"
WRAPPER
    # The compilers' paths are part of what cargo compares, so their place stays the same from run to run.
    mkdir -p "$cache/bin" "$cache/empty-sdk"
    for file in "$scratch"/bin/zig-*; do mv -f "$file" "$cache/bin/"; done

    export CC_aarch64_apple_darwin="$cache/bin/zig-cc" CXX_aarch64_apple_darwin="$cache/bin/zig-c++"
    export AR_aarch64_apple_darwin="$cache/bin/zig-ar"
    export ZIG_GLOBAL_CACHE_DIR="$scratch_of_zig" ZIG_LOCAL_CACHE_DIR="$scratch_of_zig"
    export LIBCLANG_PATH="$tools/clang/native"
    export BINDGEN_EXTRA_CLANG_ARGS_aarch64_apple_darwin="-isystem $zig/lib/include -isystem $zig/lib/libc/include/any-darwin-any"
    # An empty directory: cc would otherwise ask xcrun, which only a Mac has.
    export SDKROOT="$cache/empty-sdk" MACOSX_DEPLOYMENT_TARGET=$MACOS
    # An MLX of the user's own is one for Linux. The wheel goes beside that of Linux, not where a Mac would have it.
    unset PACELINE_MLX_DIR
    export PACELINE_MLX_CACHE="${PACELINE_MLX_CACHE:-${cache%/*}/mlx}"
}

# --- Rust's standard library ---------------------------------------------------------------------------------------

has_std() {
    for file in "$(rustc --print sysroot)/lib/rustlib/$TARGET/lib"/libstd-*.rlib; do
        [ -e "$file" ] && return 0
    done
    return 1
}

std_by_rustup() {
    has_std && return 0
    have rustup || { say "check-macos: no rustup here"; return 1; }
    # The bound is for a server that does not answer: rustup itself tries for many minutes.
    timeout 120 rustup target add "$TARGET" || { say "check-macos: rustup target add $TARGET failed"; return 1; }
    # A cargo that rustup does not manage has a library directory of its own.
    has_std || { say "check-macos: rustup added $TARGET to another compiler than the one of $(command -v cargo)"; return 1; }
}

# apt's commands with package lists of our own: reading and fetching them then needs no right and changes nothing.
apt() {
    tool=$1
    shift
    "$tool" -q -o Dir::State::Lists="$scratch/lists" -o Dir::Cache="$scratch/apt" -o APT::Sandbox::User="$(id -un)" \
        -o Acquire::Languages=none "$@"
}

# The newest version for which the compiler, its clippy and the standard library's source are all there.
debian_version() {
    for version in $(apt apt-cache madison rustc-web | cut -d '|' -f 2); do
        for package in rust-web-src rust-web-clippy; do
            apt apt-cache madison "$package" | cut -d '|' -f 2 | tr -d ' ' | grep -qxF "$version" || continue 2
        done
        say "$version"
        return 0
    done
}

# Sets `debian` to the directory of the unpacked packages.
debian_compiler() {
    if ! have apt-get || ! have dpkg-deb; then
        die "check-macos: the standard library for $TARGET is missing; expected 'rustup target add $TARGET' to work, or Debian's apt-get and dpkg-deb"
    fi
    # A compiler that an earlier run unpacked is used again without asking the network. Removing the cache makes it newer.
    for debian in "$cache"/rustc-web-*; do
        [ -d "$debian" ] && ! older_than_ours "${debian##*/rustc-web-}" && return 0
    done
    say "check-macos: fetching a compiler and the standard library's source with apt-get"
    mkdir -p "$scratch/lists/partial" "$scratch/apt/archives/partial" "$scratch/debs" "$scratch/debian"
    apt apt-get update >"$scratch/apt.log" 2>&1 || true
    version=$(debian_version)
    if [ -z "$version" ] || older_than_ours "$version"; then
        cat "$scratch/apt.log" >&2
        if grep -q '^[WE]: Failed to fetch' "$scratch/apt.log"; then
            die "check-macos: apt-get cannot reach its package sources (see above); check the network and apt's configuration"
        fi
        die "check-macos: expected packages rustc-web, rust-web-src and rust-web-clippy of Rust $oldest or newer in apt's sources (Debian's security archive has them), found ${version:-none}"
    fi
    # A simulated installation names what the compiler needs and this system lacks, libLLVM and its own libraries.
    apt apt-get --simulate --no-install-recommends --reinstall install \
        "rustc-web=$version" "rust-web-src=$version" "rust-web-clippy=$version" >"$scratch/plan" ||
        die "check-macos: apt-get finds no way to install rustc-web $version (see above)"
    packages=$(sed -n 's/^Inst \([^ ]*\) .*(\([^ ]*\) .*/\1=\2/p' "$scratch/plan")
    # shellcheck disable=SC2086
    (cd "$scratch/debs" && apt apt-get download $packages) >"$scratch/apt.log" 2>&1 || {
        cat "$scratch/apt.log" >&2
        die "check-macos: apt-get cannot download rustc-web $version and what it needs (see above)"
    }
    for package in "$scratch/debs"/*.deb; do dpkg-deb --extract "$package" "$scratch/debian"; done
    rm -rf "$scratch/debs"
    place "$scratch/debian" "rustc-web-$version"
    debian=$cache/rustc-web-$version
}

# older_than_ours VERSION: whether a Rust of this version is older than the one Cargo.toml asks for.
older_than_ours() {
    oldest=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    [ "$(printf '%s\n%s\n' "$oldest" "$1" | sort -V | head -n 1)" != "$oldest" ]
}

std_by_debian() {
    debian_compiler
    libraries=
    for dir in "$debian"/usr/lib/*-linux-gnu; do libraries=$dir; done
    mkdir "$scratch/rust"
    # cargo-clippy takes the clippy-driver beside itself, which then inherits the library path.
    for tool in rustc cargo-clippy; do
        wrapper "$scratch/rust/$tool" <<WRAPPER
#!/usr/bin/env bash
LD_LIBRARY_PATH="$libraries\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}" exec "$debian/usr/bin/$tool" "\$@"
WRAPPER
    done
    bin=$cache/bin-${debian##*/}
    mkdir -p "$bin"
    for file in "$scratch"/rust/*; do mv -f "$file" "$bin/"; done
    export RUSTC="$bin/rustc"
    # Not `cargo clippy`: that is the one of cargo's own compiler.
    clippy="$bin/cargo-clippy clippy"
    "$RUSTC" --version >/dev/null || die "check-macos: the compiler of Debian's packages does not run here (see above)"

    sysroot=sysroot-${debian##*/}
    if [ ! -d "$cache/$sysroot" ]; then
        say "check-macos: compiling the standard library for $TARGET"
        compile_std
        place "$scratch/sysroot" "$sysroot"
    fi
    export CARGO_TARGET_AARCH64_APPLE_DARWIN_RUSTFLAGS="--sysroot $cache/$sysroot"
}

# Compiles the standard library into `scratch/sysroot`: as the dependency of an empty package, by cargo's build-std.
compile_std() {
    mkdir -p "$scratch/std/src"
    : >"$scratch/std/src/lib.rs"
    cat >"$scratch/std/Cargo.toml" <<'MANIFEST'
[package]
name = "empty"
version = "0.1.0"
edition = "2024"
[workspace]
[profile.release]
debug = false
MANIFEST
    # RUSTC_BOOTSTRAP: build-std is not stable. Only the standard library is compiled with it.
    (cd "$scratch/std" && RUSTC_BOOTSTRAP=1 CARGO_TARGET_DIR="$scratch/std-target" \
        cargo build --quiet --release --target "$TARGET" -Zbuild-std=std,panic_abort,test,proc_macro) ||
        die "check-macos: the standard library for $TARGET does not compile (see above)"
    library=$scratch/sysroot/lib/rustlib/$TARGET/lib
    mkdir -p "$library"
    for file in "$scratch/std-target/$TARGET/release/deps"/*.rlib; do
        case $file in */libempty-*) ;; *) cp "$file" "$library/" ;; esac
    done
}

# --- The check -----------------------------------------------------------------------------------------------------

c_tools
clippy="cargo clippy"
case ${PACELINE_CHECK_MACOS_STD:-any} in
    rustup) std_by_rustup || die "check-macos: rustup has no standard library for $TARGET (see above)" ;;
    debian) std_by_debian ;;
    any) std_by_rustup || std_by_debian ;;
    *) die "check-macos: PACELINE_CHECK_MACOS_STD: expected rustup or debian, found $PACELINE_CHECK_MACOS_STD" ;;
esac
# A target directory of its own: with another compiler or other flags, cargo would build host and target anew each time.
CARGO_TARGET_DIR=$(target_dir)/macos
export CARGO_TARGET_DIR
rm -rf "$scratch"

# shellcheck disable=SC2086
case $mode in
    clippy) $clippy $LOCKED --workspace --all-targets --target "$TARGET" -- -D warnings ;;
    build) cargo build $LOCKED --workspace --lib --target "$TARGET" ;;
esac
say "check-macos: passed"
