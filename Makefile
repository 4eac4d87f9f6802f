# Every recipe of the project; CI runs these and no others. What a recipe does is in scripts/.
# Works with any POSIX make and with the GNU make 3.81 of macOS.

# Of `make demo`, `install`, `dist`, `deb` and `smollm2`: release or dev.
PROFILE = release
# Of `make install`.
PREFIX = /usr/local
DESTDIR =
# Of `make demo-train`: steps of 4096 tokens; the whole recipe has 2200.
STEPS = 20
# Of `make fuzz`: for each target.
SECONDS = 60
# Of `make check`: yes or no. CI lints while it builds, and has run the tests before.
LINTS = yes
TESTS = yes
# Of `make many`.
PORT = 30000
# Of `make chaos`.
MINUTES = 5
SEED = 7

help: ## this list (the default)
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

demo: setup ## install what is missing, build, serve the embedded pair, then SmolLM2 [PROFILE=release|dev]
	@PROFILE=$(PROFILE) sh scripts/demo.sh

many: setup ## two services behind the router smg (by pip), until Ctrl-C [PORT=30000 PROFILE=release|dev]
	@PROFILE=$(PROFILE) PORT=$(PORT) sh scripts/many.sh

test: setup ## install what is missing, build, run the suite
	@sh scripts/test.sh

test-more: setup ## tests that need Python packages, a browser or minutes (half an hour at most)
	@sh scripts/test-more.sh

check: setup ## format, sizes, structure, lints, licences, tests and purity of the cores: quick, for each change [LINTS=yes TESTS=yes]
	@LINTS=$(LINTS) TESTS=$(TESTS) sh scripts/check.sh

check-macos: setup ## types and lints of everything for macOS, on Linux as well (needs a network once)
	@sh scripts/check-macos.sh

build: setup ## install what is missing, build everything (dev profile, as the tests use it)
	@sh scripts/build.sh

install: ## build what is not built, and install the programs and all they need [PREFIX=/usr/local DESTDIR= PROFILE=release|dev]
	@PROFILE=$(PROFILE) PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" sh scripts/install.sh

uninstall: ## remove what `make install` installed [PREFIX=/usr/local DESTDIR=]
	@PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" sh scripts/uninstall.sh

dist: setup ## a release archive for this system in dist/ [PROFILE=release|dev]
	@PROFILE=$(PROFILE) sh scripts/dist.sh

deb: setup ## a Debian package in dist/ (needs cargo-deb) [PROFILE=release|dev]
	@PROFILE=$(PROFILE) sh scripts/deb.sh

golden: setup ## make the golden files again with the reference implementations (Python, in a venv)
	@sh scripts/golden.sh

soak: setup ## the long tests (release profile)
	@sh scripts/soak.sh

chaos: setup ## kill, freeze and restart processes under clients that go on [MINUTES=5 SEED=7]
	@sh scripts/chaos.sh $(MINUTES) $(SEED)

fuzz: setup ## build all fuzz targets and run each for so many seconds [SECONDS=60]
	@sh scripts/fuzz.sh $(SECONDS)

audit: setup ## known advisories against the dependencies (needs cargo-deny and a network)
	@sh scripts/deny.sh advisories

demo-train: setup ## train a pair like the embedded one into target/demo-train [STEPS=20; all: 2200]
	@STEPS=$(STEPS) sh scripts/demo-train.sh

smollm2: setup ## fetch SmolLM2 (93 MB) and convert it for target.model = "smollm2" [PROFILE=release|dev]
	@PROFILE=$(PROFILE) sh scripts/smollm2.sh

setup: ## find or install the system packages that the build needs
	@sh scripts/setup.sh

.PHONY: help demo many test test-more check check-macos build install uninstall dist deb golden soak chaos fuzz audit demo-train smollm2 setup
