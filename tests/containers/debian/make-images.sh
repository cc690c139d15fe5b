#!/bin/sh
# Makes what docker-compose.yml takes from a registry out of Debian's packages, for machines that reach no registry:
# elasticdl-test/python, postgres, redis and prometheus. Needs root, debootstrap and docker.
set -eu

suite=${1:-bookworm}
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

debootstrap --variant=minbase --include=ca-certificates,python3,python3-venv "$suite" "$folder/root" >"$folder/log" 2>&1 ||
    { tail -20 "$folder/log" >&2; exit 1; }
# What this machine trusts, and where its pip looks.
cat /etc/ssl/certs/ca-certificates.crt >"$folder/root/etc/ssl/certs/ca-certificates.crt"
rm -rf "$folder/root/var/cache/apt/archives" "$folder/root/var/lib/apt/lists"
tar --directory "$folder/root" --create . | docker import --change 'CMD ["/bin/sh"]' - elasticdl-test/python >/dev/null
for name in postgres redis prometheus; do
    docker build --quiet --tag "elasticdl-test/$name" --target "$name" "$here" >/dev/null
done
