#!/bin/sh
# Makes the secrets of docker-compose.yml in deploy/docker/secrets, once. What is there stays.
#
# The folder is closed to others on the host. The files inside are readable, because Compose mounts them as they are
# and the services run as a user that the host does not know. Those of the node are not: jobs run in its container, and
# it starts as root to read them.
set -eu

folder=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)/secrets
mkdir -p "$folder"
chmod 700 "$folder"

random() {
    od -An -N32 -tx1 /dev/urandom | tr -d ' \n'
}

write() {
    if [ ! -s "$folder/$1" ]; then
        printf '%s\n' "$2" >"$folder/$1.new"
        chmod "${3:-644}" "$folder/$1.new"
        mv "$folder/$1.new" "$folder/$1"
        echo "made $folder/$1"
    fi
}

for name in admin_token cluster_secret node_token postgres_password redis_password grafana_password; do
    write "$name" "$(random)"
done
write database_url "postgresql://elasticdl:$(cat "$folder/postgres_password")@postgres:5432/elasticdl"
write redis_url "redis://elasticdl:$(cat "$folder/redis_password")@redis:6379/0" 600
write node_cluster_secret "$(cat "$folder/cluster_secret")" 600
write node_node_token "$(cat "$folder/node_token")" 600
