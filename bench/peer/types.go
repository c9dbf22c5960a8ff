package main

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// The parts of the product's kinds that the peer reads and writes.

var group = schema.GroupVersion{Group: "fencedlock.dev", Version: "v1alpha1"}

type FencedLock struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              LockSpec   `json:"spec"`
	Status            LockStatus `json:"status,omitempty"`
}

type LockSpec struct {
	Class           string      `json:"class"`
	Purpose         string      `json:"purpose,omitempty"`
	Coordinator     Coordinator `json:"coordinator"`
	WriteBoundaries []string    `json:"writeBoundaries,omitempty"`
}

type Coordinator struct {
	Lease *LeaseRef `json:"lease,omitempty"`
}

type LeaseRef struct {
	Name string `json:"name"`
}

type LockStatus struct {
	ObservedGeneration int64              `json:"observedGeneration,omitempty"`
	Verdict            string             `json:"verdict,omitempty"`
	Reason             string             `json:"reason,omitempty"`
	Epoch              int64              `json:"epoch,omitempty"`
	Grant              *Grant             `json:"grant,omitempty"`
	BoundarySummary    string             `json:"boundarySummary,omitempty"`
	Conditions         []metav1.Condition `json:"conditions,omitempty"`
}

type Grant struct {
	Epoch           int64       `json:"epoch"`
	Holder          string      `json:"holder"`
	State           string      `json:"state"`
	Since           metav1.Time `json:"since"`
	SameHolderSteps int32       `json:"sameHolderSteps"`
	Term            Term        `json:"term"`
}

type Term struct {
	LeaseUID         string            `json:"leaseUid"`
	LeaseTransitions *int32            `json:"leaseTransitions,omitempty"`
	AcquireTime      *metav1.MicroTime `json:"acquireTime,omitempty"`
	ResourceVersion  string            `json:"resourceVersion"`
}

type FencedLockList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []FencedLock `json:"items"`
}

func (in *FencedLock) copy() *FencedLock {
	out := *in
	out.ObjectMeta = *in.ObjectMeta.DeepCopy()
	out.Spec.WriteBoundaries = append([]string(nil), in.Spec.WriteBoundaries...)
	if in.Spec.Coordinator.Lease != nil {
		lease := *in.Spec.Coordinator.Lease
		out.Spec.Coordinator.Lease = &lease
	}
	if in.Status.Grant != nil {
		grant := *in.Status.Grant
		grant.Term.AcquireTime = grant.Term.AcquireTime.DeepCopy()
		out.Status.Grant = &grant
	}
	out.Status.Conditions = append([]metav1.Condition(nil), in.Status.Conditions...)
	return &out
}

func (in *FencedLock) DeepCopyObject() runtime.Object { return in.copy() }

func (in *FencedLockList) DeepCopyObject() runtime.Object {
	out := *in
	out.Items = make([]FencedLock, len(in.Items))
	for i := range in.Items {
		out.Items[i] = *in.Items[i].copy()
	}
	return &out
}

type WriteBoundary struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              BoundarySpec `json:"spec"`
}

type BoundarySpec struct {
	LockRef LeaseRef `json:"lockRef"`
	Type    string   `json:"type"`
}

type WriteBoundaryList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []WriteBoundary `json:"items"`
}

func (in *WriteBoundary) DeepCopyObject() runtime.Object {
	out := *in
	out.ObjectMeta = *in.ObjectMeta.DeepCopy()
	return &out
}

func (in *WriteBoundaryList) DeepCopyObject() runtime.Object {
	out := *in
	out.Items = make([]WriteBoundary, len(in.Items))
	for i := range in.Items {
		out.Items[i] = *in.Items[i].DeepCopyObject().(*WriteBoundary)
	}
	return &out
}
