#!/usr/bin/env bash
# Says whether programs are there; installs what is missing where it can (as root
# on Debian), else says the one command that does.
#
#   need.sh PROGRAM…   exit code 1 if one is missing in the end
#   need.sh --python   prints a Python that is new enough
set -eu
export PATH="$PATH:$HOME/.cargo/bin"

python_min="3.11"
rust_min="1.89"

say() { echo "$@" >&2; }

find_python() {
  local name
  for name in python3 python3.14 python3.13 python3.12 python3.11; do
    if "$name" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$name"
      return 0
    fi
  done
  return 1
}

cargo_is_new() {
  local have
  have=$(cargo --version 2>/dev/null | awk '{ print $2 }')
  [ -n "$have" ] && [ "$(printf '%s\n%s\n' "$rust_min" "$have" | sort -V | head -n 1)" = "$rust_min" ] &&
    cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1
}

has() {
  case "$1" in
    python) find_python >/dev/null ;;
    cargo) cargo_is_new && command -v cc >/dev/null ;;
    zookeeper) [ -e /usr/share/java/zookeeper.jar ] && command -v java >/dev/null ;; # The package has no command.
    *) command -v "$1" >/dev/null ;;
  esac
}

packages() {
  case "$1" in
    python) echo "python3 python3-venv" ;;
    cargo) echo "rustup build-essential" ;;
    redis-server) echo "redis-server" ;;
    redis-cli | redis-benchmark) echo "redis-tools" ;;
    node) echo "nodejs" ;;
    etcd) echo "etcd-server" ;;
    mosquitto_pub | mosquitto_sub) echo "mosquitto-clients" ;;
    *) echo "$1" ;;
  esac
}

describe() {
  case "$1" in
    python) echo "Python $python_min or newer with venv" ;;
    cargo) echo "Rust $rust_min or newer with rustfmt and clippy, and a C linker" ;;
    *) echo "$1" ;;
  esac
}

after_install() {
  [ "$1" = cargo ] || return 0
  command -v rustup >/dev/null && rustup toolchain install stable --profile default --no-self-update >&2 && rustup default stable >&2
}

if [ "${1:-}" = --python ]; then
  find_python || { say "error: there is no $(describe python)"; exit 1; }
  exit 0
fi

missing=()
for program in "$@"; do has "$program" || missing+=("$program"); done
[ ${#missing[@]} -eq 0 ] && exit 0

wanted=()
for program in "${missing[@]}"; do
  for package in $(packages "$program"); do
    [[ " ${wanted[*]-} " == *" $package "* ]] || wanted+=("$package")
  done
done

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  say "installing ${wanted[*]}"
  export DEBIAN_FRONTEND=noninteractive
  # Services that the packages would start are not wanted: the tests start their own.
  policy=/usr/sbin/policy-rc.d
  if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
    trap 'rm -f "$policy"' EXIT
  fi
  { apt-get update -qq && apt-get install -y -qq --no-install-recommends "${wanted[@]}"; } >&2 || true
  for program in "${missing[@]}"; do has "$program" || after_install "$program" || true; done
fi

status=0
for program in "${missing[@]}"; do
  has "$program" && continue
  status=1
  say "missing: $(describe "$program")"
  if [ "$program" = cargo ]; then
    say "hint: sudo apt-get install -y rustup build-essential && rustup default stable"
  else
    say "hint: sudo apt-get install -y $(packages "$program")"
  fi
done
exit $status
