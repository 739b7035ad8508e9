"""Export to JobSet: manifests for Kubernetes, in which each member is a Job of one pod that runs `flowdist join`.

`manifests` makes the documents from a role graph and the options of the command line. `problems` checks them against
the rules of JobSet's admission webhook, and names what a topology asks for and JobSet cannot honour. All of them are
pure functions. JobSet starts members again by itself, so this is no engine: flowdist submits nothing here.

The documents are those of JobSet v0.12.0 (`jobset.x-k8s.io/v1alpha2`). No test has run them on a cluster.
"""
