// Package benchmarks runs the BenchmarkJobs of a cluster: it watches their Jobs and pods, has
// decide/loadjob decide, makes and ends Jobs, and reports status. It runs in the controller
// that leads. While there is no BenchmarkJob it watches nothing.
package benchmarks

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/decide/loadjob"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/edge/kube"
	"roundhouse.dev/roundhouse/internal/state/wakeup"
)

// Config is what a Keeper needs. All but Namespaces and Log is required.
type Config struct {
	REST   *rest.Config
	Mapper meta.RESTMapper
	Client client.Client
	// Reader reads from the API server.
	Reader client.Reader
	// Namespaces are the only ones that are watched; none means all.
	Namespaces []string
	// Env is what the Jobs are made with.
	Env loadjob.Env
	// List is the benchmarks that there are.
	List func() []loadjob.Benchmark
	// Report writes the status of one.
	Report func(context.Context, *loadjob.Benchmark, loadjob.Status) error
	// Disabled is why no benchmark is run, which its status says; "" where they are.
	Disabled string
	Log      *slog.Logger
}

const (
	// settle is the wait after a change for those that come with it.
	settle = 200 * time.Millisecond
	// minRetry and maxRetry are between two attempts after a write has failed.
	minRetry, maxRetry = 2 * time.Second, 5 * time.Minute
	// watchRetry is the wait before another watch after one has failed.
	watchRetry = 30 * time.Second
)

// Keeper runs benchmarks.
type Keeper struct {
	cfg     Config
	changed wakeup.Bell

	mu     sync.Mutex
	listed bool
	jobs   map[client.ObjectKey]*batchv1.Job
	pods   map[client.ObjectKey]*corev1.Pod
}

// New makes a keeper. It watches nothing before Run.
func New(cfg Config) (*Keeper, error) {
	if cfg.REST == nil || cfg.Mapper == nil || cfg.Client == nil || cfg.Reader == nil || cfg.Env.Image == "" || cfg.Env.Gateway == "" || cfg.List == nil || cfg.Report == nil {
		return nil, errors.New("benchmarks: REST, Mapper, Client, Reader, Env, List and Report are required")
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Keeper{cfg: cfg, changed: wakeup.New()}, nil
}

// Changed has the benchmarks looked at again.
func (k *Keeper) Changed() { k.changed.Ring() }

// Run runs benchmarks until ctx ends.
func (k *Keeper) Run(ctx context.Context) {
	for len(k.cfg.List()) == 0 && ctx.Err() == nil {
		k.changed.Sleep(ctx, time.Time{})
	}
	var watching sync.WaitGroup
	defer watching.Wait()
	if k.cfg.Disabled == "" {
		watching.Go(func() { k.keepWatching(ctx) })
	}
	for retry := minRetry; ctx.Err() == nil; {
		var again time.Time
		if err := k.look(ctx); err != nil && ctx.Err() == nil {
			k.cfg.Log.Warn("not every BenchmarkJob could be looked after, retrying", "error", err)
			again = time.Now().Add(retry)
			retry = min(2*retry, maxRetry)
		} else {
			retry = minRetry
		}
		k.changed.Sleep(ctx, again)
		wakeup.New().Sleep(ctx, time.Now().Add(settle))
	}
}

// keepWatching watches Jobs and pods until ctx ends.
func (k *Keeper) keepWatching(ctx context.Context) {
	for {
		k.mu.Lock() // a new watch does not tell of what was deleted before it
		k.listed, k.jobs, k.pods = false, map[client.ObjectKey]*batchv1.Job{}, map[client.ObjectKey]*corev1.Pod{}
		k.mu.Unlock()
		err := k.watch(ctx)
		if ctx.Err() != nil {
			return
		}
		k.cfg.Log.Error("the Jobs of BenchmarkJobs are not watched; retrying", "error", err)
		wakeup.New().Sleep(ctx, time.Now().Add(watchRetry))
	}
}

func (k *Keeper) watch(ctx context.Context) error {
	ours, err := labels.NewRequirement(loadjob.LabelBenchmark, selection.Exists, nil)
	if err != nil {
		return err
	}
	of := cache.ByObject{Label: labels.NewSelector().Add(*ours)}
	opts := cache.Options{Mapper: k.cfg.Mapper, DefaultTransform: kube.Trim, DefaultNamespaces: kube.Within(k.cfg.Namespaces), ByObject: map[client.Object]cache.ByObject{&batchv1.Job{}: of, &corev1.Pod{}: of}}
	if err := kube.Watch(ctx, k.cfg.REST, opts, k.see, k.ready); err != nil {
		return err
	}
	return errors.New("the watch ended")
}

// see notes a Job or a pod.
func (k *Keeper) see(o any, exists bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch o := o.(type) {
	case *batchv1.Job:
		if k.jobs[client.ObjectKeyFromObject(o)] = o; !exists {
			delete(k.jobs, client.ObjectKeyFromObject(o))
		}
	case *corev1.Pod:
		if k.pods[client.ObjectKeyFromObject(o)] = o; !exists {
			delete(k.pods, client.ObjectKeyFromObject(o))
		}
	}
	k.changed.Ring()
}

// ready notes that all Jobs and pods that there were have been seen.
func (k *Keeper) ready() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.listed = true
	k.changed.Ring()
}

// seen are the Jobs and pods of each namespace; false while not all have been seen.
func (k *Keeper) seen() (jobs map[string][]*batchv1.Job, pods map[string][]*corev1.Pod, ready bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	jobs, pods = map[string][]*batchv1.Job{}, map[string][]*corev1.Pod{}
	for _, j := range slices.SortedFunc(maps.Values(k.jobs), func(a, b *batchv1.Job) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) }) {
		jobs[j.Namespace] = append(jobs[j.Namespace], j)
	}
	for _, p := range k.pods {
		pods[p.Namespace] = append(pods[p.Namespace], p)
	}
	return jobs, pods, k.listed
}

// look does what is to be done for every benchmark.
func (k *Keeper) look(ctx context.Context) error {
	jobs, pods, ready := k.seen()
	if !ready && k.cfg.Disabled == "" {
		return nil // it is called again then
	}
	var errs []error
	for _, b := range k.cfg.List() {
		d := loadjob.Decide(&b, jobs[b.Namespace], pods[b.Namespace])
		if k.cfg.Disabled != "" {
			d = loadjob.Decision{Status: loadjob.Status{State: loadjob.Pending, Details: k.cfg.Disabled}}
		}
		if err := k.carryOut(ctx, &b, d); err != nil {
			d.Status = d.Status.Refused(err.Error())
			errs = append(errs, fmt.Errorf("benchmarkjob %s: %w", b.Key, err))
		}
		if err := k.cfg.Report(ctx, &b, d.Status); err != nil {
			errs = append(errs, fmt.Errorf("benchmarkjob %s: %w", b.Key, err))
		}
	}
	return errors.Join(errs...)
}

// carryOut makes and ends Jobs. One that ends stays until its pods have ended.
func (k *Keeper) carryOut(ctx context.Context, b *loadjob.Benchmark, d loadjob.Decision) error {
	for _, name := range d.Delete {
		j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: b.Namespace, Name: name}}
		if err := client.IgnoreNotFound(k.cfg.Client.Delete(ctx, j, client.PropagationPolicy(metav1.DeletePropagationForeground))); err != nil {
			return err
		}
	}
	if !d.Create {
		return nil
	}
	job := loadjob.Render(b, k.cfg.Env)
	switch err := k.cfg.Client.Create(ctx, job, client.FieldOwner(shape.FieldManager)); {
	case apierrors.IsAlreadyExists(err):
		return k.taken(ctx, b, job.Name, err)
	case err != nil:
		return err
	}
	k.cfg.Log.Info("a Job sends the load of a BenchmarkJob", "benchmarkjob", b.Key.String(), "job", job.Name)
	return nil
}

// taken is why a benchmark's Job could not be made, since one of its name was there; nil
// where it is its own, which the watch has not told of yet.
func (k *Keeper) taken(ctx context.Context, b *loadjob.Benchmark, name string, there error) error {
	var all batchv1.JobList // of one; to list is what the controller may
	if err := k.cfg.Reader.List(ctx, &all, client.InNamespace(b.Namespace), client.MatchingFields{metav1.ObjectNameField: name}); err != nil {
		return err
	}
	if len(all.Items) == 0 { // it has gone meanwhile
		return there
	}
	return loadjob.Taken(b, &all.Items[0])
}
