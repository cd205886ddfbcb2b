package platform_test

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/edge/kube"
	"roundhouse.dev/roundhouse/internal/state/fleet/platformtest"
)

var node *kubelet

// handsOff on a pod leaves its status to the test.
const handsOff = "test/hands-off"

// kubelet takes the place of scheduler, node and kubelet: it binds pods, writes
// the status that a kubelet writes of a container that behaves as the suite's
// server was told to, and lets pods go. It runs nothing.
type kubelet struct {
	client client.Client
	ctx    context.Context
	stop   func()

	mu    sync.Mutex
	lives map[types.UID]func()
	next  int
}

func startKubelet(cfg *rest.Config) (*kubelet, error) {
	c, err := client.New(cfg, client.Options{Scheme: kube.Scheme()})
	if err != nil {
		return nil, err
	}
	watch, err := cache.New(cfg, cache.Options{Scheme: kube.Scheme()})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	k := &kubelet{client: c, ctx: ctx, lives: map[types.UID]func(){}}
	informer, err := watch.GetInformer(ctx, &corev1.Pod{}, cache.BlockUntilSynced(false))
	if err != nil {
		cancel()
		return nil, err
	}
	if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { k.seen(o.(*corev1.Pod).DeepCopy()) },
		UpdateFunc: func(_, o any) { k.seen(o.(*corev1.Pod).DeepCopy()) },
	}); err != nil {
		cancel()
		return nil, err
	}
	var wg sync.WaitGroup
	wg.Go(func() { _ = watch.Start(ctx) })
	k.stop = func() { cancel(); wg.Wait() }
	return k, nil
}

// seen begins or ends the life of a pod.
func (k *kubelet) seen(pod *corev1.Pod) {
	if _, off := pod.Annotations[handsOff]; off {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	end, living := k.lives[pod.UID]
	switch {
	case pod.DeletionTimestamp != nil && living:
		end()
	case pod.DeletionTimestamp == nil && !living:
		ctx, end := context.WithCancel(k.ctx)
		k.lives[pod.UID] = end
		k.next++
		pod.Status.PodIP = fmt.Sprintf("10.1.%d.%d", k.next/250, k.next%250+1)
		go k.live(ctx, pod)
	}
}

// live takes a pod through its life and away.
func (k *kubelet) live(ctx context.Context, pod *corev1.Pod) {
	if pod.Spec.NodeName == "" {
		if err := k.client.SubResource("binding").Create(ctx, pod, &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: "node"}}); err != nil {
			return
		}
	}
	var s platformtest.Server
	for _, e := range pod.Spec.Containers[0].Env {
		if e.Name == "PLATFORMTEST_SERVER" {
			_ = json.Unmarshal([]byte(e.Value), &s)
		}
	}
	k.serve(ctx, pod, s)
	<-ctx.Done()
	if k.ctx.Err() == nil {
		_ = k.client.Delete(k.ctx, pod, client.GracePeriodSeconds(0), client.Preconditions{UID: &pod.UID})
	}
}

const restartPause = 600 * time.Millisecond

// serve is what the container does until it is told to end.
func (k *kubelet) serve(ctx context.Context, pod *corev1.Pod, s platformtest.Server) {
	c := corev1.ContainerStatus{Name: pod.Spec.Containers[0].Name, Image: pod.Spec.Containers[0].Image}
	for ctx.Err() == nil {
		started := metav1.Now()
		c.State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: started}}
		c.Started = new(true)
		if s.CrashAfter >= 0 {
			c.Ready = false
			k.report(ctx, pod, c)
			if s.NeverReady || !pause(ctx, s.ReadyAfter) {
				return
			}
			c.Ready = true
			k.report(ctx, pod, c)
			if s.CrashAfter == 0 || !pause(ctx, s.CrashAfter) {
				return
			}
		}
		end := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: int32(s.CrashCode), Reason: "Error",
			StartedAt: started, FinishedAt: metav1.Now()}}
		c.LastTerminationState, c.Ready, c.Started = end, false, new(false)
		c.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff",
			Message: "back-off 600ms restarting failed container=main pod=" + pod.Name}}
		k.report(ctx, pod, c)
		if !pause(ctx, restartPause) {
			return
		}
		c.RestartCount++
	}
}

// pause is false when the pod has to end.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// report writes a pod's status as a kubelet does.
func (k *kubelet) report(ctx context.Context, pod *corev1.Pod, c corev1.ContainerStatus) {
	ready := corev1.ConditionFalse
	if c.Ready {
		ready = corev1.ConditionTrue
	}
	now := metav1.Now()
	status := corev1.PodStatus{Phase: corev1.PodRunning, PodIP: pod.Status.PodIP, HostIP: "127.0.0.1", StartTime: &now,
		ContainerStatuses: []corev1.ContainerStatus{c},
		Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionTrue},
			{Type: corev1.ContainersReady, Status: ready, LastTransitionTime: now},
			{Type: corev1.PodReady, Status: ready, LastTransitionTime: now}}}
	if err := setStatus(ctx, k.client, pod, status); err != nil && ctx.Err() == nil && !apierrors.IsNotFound(err) {
		fmt.Println("kubelet:", err)
	}
}

func setStatus(ctx context.Context, c client.Client, pod *corev1.Pod, status corev1.PodStatus) error {
	patch, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		return err
	}
	return c.SubResource("status").Patch(ctx, pod.DeepCopy(), client.RawPatch(types.MergePatchType, patch))
}
