package check

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
)

// decode reads the documents of all files as the API server does with strict validation of
// fields: an unknown or doubled field is an error.
func decode(t *testing.T) []runtime.Object {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, appsv1.AddToScheme, policyv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	files, err := filepath.Glob("../*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	var objects []runtime.Object
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for n, document := range bytes.Split(text, []byte("\n---\n")) {
			o, _, err := decoder.Decode(document, nil, nil)
			if err != nil {
				t.Fatalf("%s, document %d: %v", file, n+1, err)
			}
			objects = append(objects, o)
		}
	}
	return objects
}

func all[T runtime.Object](objects []runtime.Object) []T {
	var list []T
	for _, o := range objects {
		if v, ok := o.(T); ok {
			list = append(list, v)
		}
	}
	return list
}

func one[T runtime.Object](t *testing.T, objects []runtime.Object) T {
	t.Helper()
	list := all[T](objects)
	if len(list) != 1 {
		t.Fatalf("%d objects of %T", len(list), list)
	}
	return list[0]
}

// Names are what the API server takes, and no two objects of a kind have one.
func TestNames(t *testing.T) {
	seen := map[string]bool{}
	for _, o := range decode(t) {
		m, ok := o.(metav1.Object)
		if !ok {
			t.Fatalf("%T has no name", o)
		}
		kind := o.GetObjectKind().GroupVersionKind().Kind
		if bad := validation.IsDNS1123Subdomain(m.GetName()); len(bad) > 0 {
			t.Errorf("%s %q: %v", kind, m.GetName(), bad)
		}
		if id := kind + " " + m.GetName(); seen[id] {
			t.Errorf("%s is there twice", id)
		} else {
			seen[id] = true
		}
	}
}

// What selects finds the pods, and each port that is named exists.
func TestReferences(t *testing.T) {
	objects := decode(t)
	set := one[*appsv1.StatefulSet](t, objects)
	pod := set.Spec.Template
	selects := func(what string, selector map[string]string) {
		t.Helper()
		if len(selector) == 0 {
			t.Errorf("%s selects everything", what)
		}
		for k, v := range selector {
			if pod.Labels[k] != v {
				t.Errorf("%s selects %s=%s, and the pods have %v", what, k, v, pod.Labels)
			}
		}
	}
	selects("the StatefulSet", set.Spec.Selector.MatchLabels)
	selects("the PodDisruptionBudget", one[*policyv1.PodDisruptionBudget](t, objects).Spec.Selector.MatchLabels)

	if len(pod.Spec.Containers) != 1 {
		t.Fatalf("%d containers", len(pod.Spec.Containers))
	}
	c := pod.Spec.Containers[0]
	ports := map[string]int32{}
	for _, p := range c.Ports {
		if bad := validation.IsValidPortName(p.Name); len(bad) > 0 {
			t.Errorf("port %q: %v", p.Name, bad)
		}
		ports[p.Name] = p.ContainerPort
	}
	known := func(what string, p intstr.IntOrString) {
		t.Helper()
		if p.Type != intstr.String || ports[p.StrVal] == 0 {
			t.Errorf("%s: there is no port %s among %v", what, p.String(), ports)
		}
	}
	headless := false
	for _, s := range all[*corev1.Service](objects) {
		selects("the service "+s.Name, s.Spec.Selector)
		for _, p := range s.Spec.Ports {
			known("the service "+s.Name, p.TargetPort)
		}
		headless = headless || s.Name == set.Spec.ServiceName && s.Spec.ClusterIP == corev1.ClusterIPNone
	}
	if !headless {
		t.Errorf("the StatefulSet's service %q is not there, or not headless", set.Spec.ServiceName)
	}
	for what, probe := range map[string]*corev1.Probe{"startupProbe": c.StartupProbe, "readinessProbe": c.ReadinessProbe, "livenessProbe": c.LivenessProbe} {
		if probe == nil || probe.HTTPGet == nil {
			t.Errorf("there is no %s over HTTP", what)
			continue
		}
		known(what, probe.HTTPGet.Port)
	}

	volumes := map[string]bool{}
	for _, v := range pod.Spec.Volumes {
		volumes[v.Name] = true
		if v.ConfigMap != nil && v.ConfigMap.Name != one[*corev1.ConfigMap](t, objects).Name {
			t.Errorf("there is no ConfigMap %s", v.ConfigMap.Name)
		}
	}
	for _, v := range set.Spec.VolumeClaimTemplates {
		volumes[v.Name] = true
	}
	for _, m := range c.VolumeMounts {
		if !volumes[m.Name] {
			t.Errorf("%s is mounted of a volume %q that is not there, among %v", m.MountPath, m.Name, slices.Sorted(maps.Keys(volumes)))
		}
		delete(volumes, m.Name)
	}
	if len(volumes) > 0 {
		t.Errorf("nothing mounts %v", slices.Sorted(maps.Keys(volumes)))
	}
	if name := pod.Spec.ServiceAccountName; name != one[*corev1.ServiceAccount](t, objects).Name {
		t.Errorf("there is no ServiceAccount %s", name)
	}
}

// The pod is what the strictest of the Pod Security Standards takes ("restricted").
func TestRestricted(t *testing.T) {
	spec := one[*appsv1.StatefulSet](t, decode(t)).Spec.Template.Spec
	p, c := spec.SecurityContext, spec.Containers[0].SecurityContext
	is := func(b *bool, want bool) bool { return b != nil && *b == want }
	switch {
	case spec.HostNetwork || spec.HostPID || spec.HostIPC:
		t.Error("it shares what is the node's")
	case !is(p.RunAsNonRoot, true) || p.RunAsUser == nil || *p.RunAsUser == 0:
		t.Error("it may run as root")
	case p.SeccompProfile == nil || p.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault:
		t.Error("it has no seccomp profile")
	case !is(c.AllowPrivilegeEscalation, false) || !is(c.ReadOnlyRootFilesystem, true):
		t.Error("it may gain privileges, or write the image")
	case c.Capabilities == nil || !slices.Equal(c.Capabilities.Drop, []corev1.Capability{"ALL"}) || len(c.Capabilities.Add) > 0:
		t.Error("it has capabilities")
	case !is(spec.AutomountServiceAccountToken, false):
		t.Error("it has a token of the API server")
	// Only a group that is the process's own may write the way to its data.
	case p.FSGroup == nil || p.RunAsGroup == nil || *p.FSGroup != *p.RunAsGroup:
		t.Error("fsGroup is not the group that it runs as, so the instance would refuse its data directory")
	}
}
