//! What well-known programs do when no flag says anything, by the end of their image's name. Read in their source or documentation; a program that
//! is not here is judged by its flags and its rights alone.
//!
//! Start with [`default_of`].

/// Whether a program elects when nothing is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Default {
    /// It does.
    Elects,
    /// It does not, whatever its account may do.
    DoesNot,
    /// That depends on how it is called. Only the Lease's name is known.
    Depends,
}

/// What is known of a program.
#[derive(Clone, Copy, Debug)]
pub(super) struct Program {
    /// The end of the image's name, without its tag.
    image: &'static str,
    pub(super) default: Default,
    /// The Lease that it takes when no name is given; empty when it is made of something else, or is none.
    pub(super) lease: &'static str,
    /// The namespace of that Lease when none is given; empty for the pod's own.
    pub(super) namespace: &'static str,
}

const fn program(image: &'static str, default: Default, lease: &'static str, namespace: &'static str) -> Program {
    Program { image, default, lease, namespace }
}

const PROGRAMS: &[Program] = &[
    program("kube-controller-manager", Default::Elects, "kube-controller-manager", "kube-system"),
    program("kube-scheduler", Default::Elects, "kube-scheduler", "kube-system"),
    program("cloud-controller-manager", Default::Elects, "cloud-controller-manager", "kube-system"),
    program("argo-rollouts", Default::Elects, "argo-rollouts-controller-lock", ""),
    program("aws-load-balancer-controller", Default::Elects, "aws-load-balancer-controller-leader", ""),
    program("cert-manager-cainjector", Default::Elects, "cert-manager-cainjector-leader-election", "kube-system"),
    program("cert-manager-controller", Default::Elects, "cert-manager-controller", "kube-system"),
    program("cluster-autoscaler", Default::Elects, "cluster-autoscaler", ""),
    program("dapr/operator", Default::Elects, "operator.dapr.io", ""),
    program("envoyproxy/gateway", Default::Depends, "5b9825d2.gateway.envoyproxy.io", ""),
    program("ingress-nginx/controller", Default::Elects, "ingress-controller-leader", ""),
    program("karpenter/controller", Default::Elects, "karpenter-leader-election", ""),
    // Knative's take a Lease for each bucket of each reconciler.
    program("serving/cmd/autoscaler", Default::Elects, "", ""),
    program("serving/cmd/autoscaler-hpa", Default::Elects, "", ""),
    program("serving/cmd/controller", Default::Elects, "", ""),
    program("serving/cmd/webhook", Default::Elects, "", ""),
    program("kyverno/background-controller", Default::Elects, "kyverno-background-controller", ""),
    program("kyverno/cleanup-controller", Default::Elects, "kyverno-cleanup-controller", ""),
    program("kyverno/kyverno", Default::Elects, "kyverno", ""),
    program("kyverno/kyvernopre", Default::Elects, "kyvernopre", ""),
    program("kyverno/reports-controller", Default::Elects, "kyverno-reports-controller", ""),
    program("minio/operator", Default::Depends, "minio-operator-lock", ""),
    // Its lock is an Endpoints object, named after the provisioner.
    program("nfs-subdir-external-provisioner", Default::Elects, "", ""),
    program("tigera/operator", Default::Depends, "operator-lock", ""),
    program("workflow-controller", Default::Elects, "workflow-controller", ""),
    program("descheduler", Default::DoesNot, "descheduler", ""),
    program("external-secrets/external-secrets", Default::DoesNot, "", ""),
    program("keda-admission-webhooks", Default::DoesNot, "", ""),
    program("keda-metrics-apiserver", Default::DoesNot, "", ""),
    program("trivy-operator", Default::DoesNot, "", ""),
    program("kubernetes-ingress-controller", Default::DoesNot, "5b374a9e.konghq.com", ""),
    program("node-feature-discovery", Default::DoesNot, "nfd-master.nfd.kubernetes.io", ""),
    program("scheduler-plugins/controller", Default::DoesNot, "", ""),
    program("vpa-admission-controller", Default::DoesNot, "", ""),
    program("vpa-recommender", Default::DoesNot, "vpa-recommender-lease", "kube-system"),
    program("vpa-updater", Default::DoesNot, "vpa-updater", "kube-system"),
];

/// What is known of the program of an image without its tag.
pub(super) fn default_of(image: &str) -> Option<&'static Program> {
    // "aws-cloud-controller-manager" is one of them, "my-descheduler" is none.
    let fits = |program: &&Program| {
        let before = image.strip_suffix(program.image)?;
        (before.is_empty() || before.ends_with('/') || (program.image == "cloud-controller-manager" && before.ends_with('-'))).then_some(())
    };
    PROGRAMS.iter().find(|program| fits(program).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_known_by_the_end_of_their_image() {
        let lease = |image: &str| default_of(image).map(|program| program.lease);
        assert_eq!(lease("quay.io/jetstack/cert-manager-controller"), Some("cert-manager-controller"));
        assert_eq!(lease("registry.example/cloud/aws-cloud-controller-manager"), Some("cloud-controller-manager"));
        assert_eq!(lease("kube-scheduler"), Some("kube-scheduler"));
        assert_eq!(lease("example/my-descheduler"), None);
        assert_eq!(lease(""), None);
    }
}
