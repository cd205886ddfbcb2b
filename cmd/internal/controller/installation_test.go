package controller

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
	"roundhouse.dev/roundhouse/internal/edge/kube/records"
)

// TestTwoInstallations over one namespace: the second stands back from what the
// first looks after, says so, and ends none of it; of a new service one of them
// does.
func TestTwoInstallations(t *testing.T) {
	c := kubetest.Client(t)
	ns := kubetest.Namespace(t, c, nil)
	one, two := options(t, ns), options(t, ns)
	one.system, two.system = kubetest.Namespace(t, c, nil), kubetest.Namespace(t, c, nil)
	two.image = "registry.example/roundhouse:2" // their decisions are two
	first := begin(t, one, kubetest.Server(t))
	u := kubetest.Apply(t, c, ns, iris)[0]
	serves := func(name string) {
		t.Helper()
		kubetest.Eventually(t, func() string {
			if got := made(t, c, ns, name); got["deployments"] != 1 || got["records"] == 0 {
				return fmt.Sprintf("a record and a Deployment of %s, not %v", name, got)
			}
			return ""
		})
	}
	serves("iris")
	owner := func(name string) string {
		t.Helper()
		var l appsv1.ControllerRevisionList
		if err := c.List(t.Context(), &l, client.InNamespace(ns), client.MatchingLabels{shape.LabelService: name}); err != nil {
			t.Fatal(err)
		}
		for _, cr := range records.Newest(l.Items) {
			return cr.Annotations[records.AnnotationInstallation]
		}
		return ""
	}
	if got := owner("iris"); got != one.system {
		t.Fatalf("iris is %q's", got)
	}

	cfg := kubetest.Server(t)
	writes := kubetest.Count(cfg)
	second, err := newOperator(t.Context(), two, cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = second.close() }()
	second.handover.after = 0 // see TestHandoverAgain
	ended := make(chan error, 1)
	go func() { ended <- second.Run(t.Context()) }()
	<-second.led
	kubetest.Eventually(t, func() string {
		if got := condition(get(t, c, u), "ManagedByRoundhouse"); !strings.Contains(got, "managed by the installation in namespace "+one.system) {
			return "who looks after it, not " + got
		}
		return ""
	})
	if _, err := second.fleet.Get(t.Context(), service.Key{Namespace: ns, Name: "iris"}); err == nil {
		t.Error("the second serves it too")
	}
	for _, call := range writes.Take() {
		if !strings.Contains(call, "/configmaps") && !strings.Contains(call, "/secrets") && !strings.Contains(call, "/events") && !strings.HasSuffix(call, "iris/status") {
			t.Errorf("the second wrote %s", call)
		}
	}
	serves("iris")

	// A service that both see come is one's in the end, and stays that one's.
	kubetest.Apply(t, c, ns, strings.Replace(iris, "name: iris", "name: new", 1))
	serves("new")
	kubetest.Eventually(t, func() string {
		k := service.Key{Namespace: ns, Name: "new"}
		_, a := first.fleet.Get(t.Context(), k)
		_, b := second.fleet.Get(t.Context(), k)
		if mine, theirs := a == nil, b == nil; mine == theirs || mine != (owner("new") == one.system) {
			return fmt.Sprintf("one that serves: %v, %v, the record is %s's", mine, theirs, owner("new"))
		}
		return ""
	})
	serves("new")

	// The first goes, and its services are handed over.
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	var before appsv1.Deployment
	at := client.ObjectKey{Namespace: ns, Name: shape.Name(service.Key{Namespace: ns, Name: "iris"}, service.RoleEngine)}
	if err := c.Get(t.Context(), at, &before); err != nil {
		t.Fatal(err)
	}
	var l appsv1.ControllerRevisionList
	if err := c.List(t.Context(), &l, client.InNamespace(ns), client.MatchingLabels{shape.LabelRecord: "true"}); err != nil {
		t.Fatal(err)
	}
	for i := range l.Items {
		patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, records.AnnotationInstallation, two.system)
		if err := c.Patch(t.Context(), &l.Items[i], client.RawPatch(types.MergePatchType, []byte(patch))); client.IgnoreNotFound(err) != nil {
			t.Fatal(err)
		}
	}
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "handed over") {
		t.Fatalf("the second ended with %v", err)
	}
	third := begin(t, two, kubetest.Server(t))
	kubetest.Eventually(t, func() string {
		st, err := third.fleet.Get(t.Context(), service.Key{Namespace: ns, Name: "iris"})
		if err != nil || st.Status.Revision == "" {
			return fmt.Sprintf("iris, which is at %q: %v", st.Status.Revision, err)
		}
		return ""
	})
	var after appsv1.Deployment
	if err := c.Get(t.Context(), at, &after); err != nil || after.UID != before.UID || after.Spec.Template.String() != before.Spec.Template.String() {
		t.Errorf("its pods were replaced: %v", err)
	}
}

// TestHandoverAgain: who writes records over and over ends no controller that has
// just begun to lead.
func TestHandoverAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &handover{make(chan service.Key, 1), handoverAfter, slog.New(slog.DiscardHandler)}
		began, ended := time.Now(), make(chan error, 1)
		go func() { ended <- h.run(t.Context()) }()
		synctest.Wait()
		h.services <- service.Key{Namespace: "a", Name: "b"}
		if err := <-ended; err == nil || time.Since(began) != handoverAfter {
			t.Errorf("ended after %v: %v", time.Since(began), err)
		}
		go func() { ended <- h.run(t.Context()) }()
		time.Sleep(time.Hour) // of the test's clock
		began = time.Now()
		h.services <- service.Key{Namespace: "a", Name: "b"}
		if err := <-ended; err == nil || time.Since(began) != 0 {
			t.Errorf("one that has led for long ended after %v: %v", time.Since(began), err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		go func() { ended <- h.run(ctx) }()
		synctest.Wait()
		h.services <- service.Key{Namespace: "a", Name: "b"}
		synctest.Wait()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
