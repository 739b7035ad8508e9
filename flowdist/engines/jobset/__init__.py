"""Export to JobSet: manifests for Kubernetes, in which each member is a Job of one pod that runs `flowdist join`.

`manifests` makes the documents; `problems` checks them, and names what JobSet cannot honour. All are pure functions.
This is no engine, as JobSet itself starts members again. The documents are those of JobSet v0.12.0
(`jobset.x-k8s.io/v1alpha2`). No test has run them on a cluster.
"""
