package simulate

import (
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"time"
)

// Role is which half of a request an engine computes when prefill and decode
// are disaggregated.
type Role string

// The roles.
const (
	// RoleBoth computes whole requests, and either half when the request's
	// kv_transfer_params ask for it.
	RoleBoth Role = "both"
	// RolePrefill stops every completion after its first token and hands over
	// kv_transfer_params.
	RolePrefill Role = "prefill"
	// RoleDecode pulls the prompt's KV from the prefiller that
	// kv_transfer_params name, and prefills itself without them.
	RoleDecode Role = "decode"
)

// API is the engine that is simulated. Engines differ in how a request names a
// LoRA adapter, and in the names of metrics.
type API string

// The APIs.
const (
	// APIvLLM: an adapter is asked for by its name; a name that is not known is
	// answered 404.
	APIvLLM API = "vllm"
	// APISGLang: an adapter is asked for as "model:adapter"; any name without a
	// colon is answered by the base model.
	APISGLang API = "sglang"
)

// Physics is what the simulated machine can do. Rates are per simulated second.
type Physics struct {
	PrefillTokensPerSecond  float64       // prompt tokens not found in the prefix cache
	DecodeTokensPerSecond   float64       // of one sequence alone
	BatchSlowdown           float64       // load factor per further decoding sequence
	TransferTokensPerSecond float64       // prompt tokens pulled from a remote prefiller
	MaxSequences            int           // running at once
	MaxWaiting              int           // queued at once; an arrival beyond it is rejected
	MaxBatchedTokens        int           // computed in one iteration; at least MaxSequences
	KVBlocks                int           // KV memory in blocks of BlockTokens
	MaxAdapters             int           // LoRA adapters in one batch; 0: no LoRA
	AdapterLoadTime         time.Duration // of one adapter into a free slot
	// SleepTime is how long the engine takes to fall asleep, WakeTime to put its
	// weights back, ReloadTime to read them again after level 2.
	SleepTime, WakeTime, ReloadTime time.Duration
}

// DefaultPhysics is roughly an 8B model on one current data-centre GPU.
func DefaultPhysics() Physics {
	return Physics{
		PrefillTokensPerSecond:  10_000,
		DecodeTokensPerSecond:   60,
		BatchSlowdown:           0.01,
		TransferTokensPerSecond: 200_000,
		MaxSequences:            256,
		MaxWaiting:              1024,
		MaxBatchedTokens:        2048,
		KVBlocks:                8192,
		MaxAdapters:             0,
		AdapterLoadTime:         500 * time.Millisecond,
		SleepTime:               time.Second,
		WakeTime:                800 * time.Millisecond,
		ReloadTime:              4 * time.Second,
	}
}

// LoadFactor is how much slower an iteration with n decoding sequences is than
// one with a single sequence; at least 1.
func (p Physics) LoadFactor(n int) float64 {
	return 1 + p.BatchSlowdown*float64(max(n-1, 0))
}

// Validate reports every value that has no physical sense.
func (p Physics) Validate() error {
	var errs []error
	rate := func(name string, v float64) {
		if !(v > 0) || math.IsInf(v, 0) {
			errs = append(errs, fmt.Errorf("%s is %v: want a positive number", name, v))
		}
	}
	between := func(name string, v, low, high int) {
		if v < low || v > high {
			errs = append(errs, fmt.Errorf("%s is %d: want %d to %d", name, v, low, high))
		}
	}
	rate("prefill-tokens-per-second", p.PrefillTokensPerSecond)
	rate("decode-tokens-per-second", p.DecodeTokensPerSecond)
	rate("transfer-tokens-per-second", p.TransferTokensPerSecond)
	if !(p.BatchSlowdown >= 0) || math.IsInf(p.BatchSlowdown, 0) {
		errs = append(errs, fmt.Errorf("batch-slowdown is %v: want 0 or more", p.BatchSlowdown))
	}
	between("max-num-seqs", p.MaxSequences, 1, 1<<16)
	between("max-waiting", p.MaxWaiting, 1, 1<<24)
	between("max-num-batched-tokens", p.MaxBatchedTokens, p.MaxSequences, 1<<24)
	between("kv-blocks", p.KVBlocks, 1, 1<<26)
	between("max-loras", p.MaxAdapters, 0, 1024)
	if p.SleepTime < 0 || p.WakeTime < 0 || p.ReloadTime < 0 {
		errs = append(errs, errors.New("sleep-time, wake-time and reload-time must be 0 or more"))
	}
	if p.AdapterLoadTime < 0 {
		errs = append(errs, fmt.Errorf("lora-load-time is %v: want 0 or more", p.AdapterLoadTime))
	}
	return errors.Join(errs...)
}

// Config is what an Engine is made of. DefaultConfig holds the defaults.
type Config struct {
	// Models are the names served; the first is the base model's, the others are
	// aliases. At least one.
	Models []string
	// Adapters are the LoRA adapters known at the start.
	Adapters []string
	Physics  Physics
	Role     Role
	API      API

	Address      string        // host:port to listen on; port 0 takes a free one
	StartupDelay time.Duration // before listening: the loading of weights; simulated
	Grace        time.Duration // real time that requests get to finish on shutdown

	// KVEvents and KVReplay are the host:port at which KV events are published,
	// and replayed; "" for nowhere. KVTopic is their topic.
	KVEvents, KVReplay, KVTopic string

	// DataParallelSize is how many ranks answer at the address; rank is which one an
	// engine is.
	DataParallelSize int
	rank             int

	// Dev offers vLLM's calls of development mode, by which it sleeps.
	Dev bool
	// MemorySaver and WeightsBackup are SGLang's flags of these names: released
	// memory is given back, and weights are kept in main memory meanwhile.
	MemorySaver, WeightsBackup bool

	Seed  uint64  // of answers and their lengths
	Speed float64 // simulated seconds per real second

	DefaultMaxTokens int   // of a request that gives none
	MeanOutputTokens int   // answers end by themselves around this length
	MaxBodyBytes     int64 // a longer request is answered 413

	// Exit ends the process for the injected fault "exit".
	Exit func(code int)
}

// DefaultConfig serves the model "simulated" on loopback.
func DefaultConfig() Config {
	return Config{
		Models:           []string{"simulated"},
		Physics:          DefaultPhysics(),
		Role:             RoleBoth,
		API:              APIvLLM,
		DataParallelSize: 1,
		Address:          "127.0.0.1:8000",
		Grace:            30 * time.Second,
		Seed:             1,
		Speed:            1,
		DefaultMaxTokens: 512,
		MeanOutputTokens: 128,
		MaxBodyBytes:     32 << 20,
		Exit:             os.Exit,
	}
}

// Validate reports everything that is wrong with c, by the names of the flags.
func (c Config) Validate() error {
	errs := []error{c.Physics.Validate(), c.validRanks()}
	bad := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	bad(len(c.Models) == 0, "model is not given: name at least one")
	names := slices.Concat(c.Models, c.Adapters)
	for i, name := range names {
		bad(name == "", "model and lora names must not be empty")
		bad(slices.Contains(names[:i], name), "name %q is given twice among model and lora", name)
	}
	bad(len(c.Adapters) > 0 && c.Physics.MaxAdapters == 0, "lora is given but max-loras is 0")
	bad(!slices.Contains([]Role{RoleBoth, RolePrefill, RoleDecode}, c.Role), "role is %q: want both, prefill or decode", c.Role)
	bad(!slices.Contains([]API{APIvLLM, APISGLang}, c.API), "api is %q: want vllm or sglang", c.API)
	bad(!(c.Speed > 0) || math.IsInf(c.Speed, 0), "speed is %v: want a positive number", c.Speed)
	bad(c.StartupDelay < 0, "startup-delay is %v: want 0 or more", c.StartupDelay)
	bad(c.Grace < 0, "grace is %v: want 0 or more", c.Grace)
	bad(c.DefaultMaxTokens < 1, "default-max-tokens is %d: want 1 or more", c.DefaultMaxTokens)
	bad(c.MeanOutputTokens < 1, "mean-output-tokens is %d: want 1 or more", c.MeanOutputTokens)
	bad(c.MaxBodyBytes < 1, "max-body-bytes is %d: want 1 or more", c.MaxBodyBytes)
	return errors.Join(errs...)
}
