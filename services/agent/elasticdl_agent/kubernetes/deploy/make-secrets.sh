#!/bin/sh
# Makes the Secret of deploy/k8s, once: what is there stays. For the overlay "external" set DATABASE_URL and REDIS_URL.
set -eu

namespace=${NAMESPACE:-elasticdl}
if kubectl --namespace "$namespace" get secret elasticdl >/dev/null 2>&1; then
    echo "the Secret is there"
    exit 0
fi
random() {
    od -An -N32 -tx1 /dev/urandom | tr -d ' \n'
}
postgres=$(random) redis=$(random)
kubectl get namespace "$namespace" >/dev/null 2>&1 || kubectl create namespace "$namespace"
# Through standard input: what is on a command line, others see.
kubectl --namespace "$namespace" create -f - <<SECRET
apiVersion: v1
kind: Secret
metadata:
  name: elasticdl
stringData:
  admin_token: $(random)
  cluster_secret: $(random)
  node_token: $(random)
  postgres_password: $postgres
  redis_password: $redis
  database_url: ${DATABASE_URL:-postgresql://elasticdl:$postgres@elasticdl-postgres.$namespace.svc:5432/elasticdl}
  redis_url: ${REDIS_URL:-redis://elasticdl:$redis@elasticdl-redis.$namespace.svc:6379/0}
SECRET
