// Package load decides what a benchmark sends, when, and what its figures are. The
// scenarios are spelt as in OME's BenchmarkJob.
package load

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Bounds of a load.
const (
	// MaxTokens bounds a prompt and an answer.
	MaxTokens = 1 << 20
	// MaxRequests bounds the requests of one point.
	MaxRequests = 1_000_000
	// MaxConcurrency bounds the requests in flight.
	MaxConcurrency = 4096
	// MaxRate bounds the requests a second.
	MaxRate = 10_000
	// MaxPoints bounds the points of a report: scenarios times concurrencies or rates.
	MaxPoints = 256
)

// Length is how many tokens a prompt or an answer has: a number, or a distribution.
type Length struct {
	// Shape is 'D' for a fixed number, 'N' for a normal and 'U' for a uniform
	// distribution.
	Shape byte
	// A is the number, the mean or the least; B is the deviation or the most.
	A, B int
}

// Fixed is the length of so many tokens.
func Fixed(tokens int) Length { return Length{Shape: 'D', A: tokens} }

// ParseLength reads "128", "D(128)", "N(480,240)" or "U(50,100)".
func ParseLength(text string) (Length, error) {
	shape, numbers, err := call(text)
	if n, plain := strconv.Atoi(strings.TrimSpace(text)); plain == nil {
		shape, numbers, err = 'D', []int{n}, nil
	}
	wanted := map[byte]int{'D': 1, 'N': 2, 'U': 2}[shape]
	if err != nil || len(numbers) != wanted || wanted == 0 {
		return Length{}, fmt.Errorf("%q is not a number of tokens: write 128, N(480,240) for a mean and a deviation, or U(50,100) for the least and the most", clip(text))
	}
	l := Length{Shape: shape, A: numbers[0]}
	if wanted == 2 {
		l.B = numbers[1]
	}
	return l, l.check(text)
}

func (l Length) check(text string) error {
	switch {
	case l.A < 1 || l.A > MaxTokens || l.B > MaxTokens:
		return fmt.Errorf("%q: want 1 to %d tokens", clip(text), MaxTokens)
	case l.Shape == 'U' && l.B < l.A:
		return fmt.Errorf("%q: the least is more than the most", clip(text))
	}
	return nil
}

// Random is a source of random numbers.
type Random interface {
	IntN(n int) int
	NormFloat64() float64
	ExpFloat64() float64
}

// Seeded makes a source. Equal arguments give equal numbers.
type Seeded func(seed, stream uint64) Random

// Draw is a number of tokens, at least 1.
func (l Length) Draw(random Random) int {
	n := l.A
	switch l.Shape {
	case 'N':
		n = int(math.Round(float64(l.A) + random.NormFloat64()*float64(l.B)))
	case 'U':
		n += random.IntN(l.B - l.A + 1)
	}
	return min(max(n, 1), MaxTokens)
}

func (l Length) String() string {
	if l.Shape == 'D' {
		return strconv.Itoa(l.A)
	}
	return fmt.Sprintf("%c(%d,%d)", l.Shape, l.A, l.B)
}

// Scenario is the lengths of a point's requests. Output is zero for embeddings.
type Scenario struct {
	Name          string
	Input, Output Length
}

// ParseScenario reads OME's "D(100,1000)", "N(480,240)/(300,150)", "U(50,100)/(200,250)"
// and "E(64)": the tokens of a prompt and those of an answer.
func ParseScenario(text string) (Scenario, error) {
	wrong := fmt.Errorf("%q is not a scenario: write D(INPUT,OUTPUT), N(MEAN,DEVIATION)/(MEAN,DEVIATION), U(LEAST,MOST)/(LEAST,MOST), or E(INPUT) for embeddings", clip(text))
	first, second, two := strings.Cut(strings.TrimSpace(text), "/")
	shape, in, err := call(first)
	if err != nil {
		return Scenario{}, wrong
	}
	s := Scenario{Name: strings.TrimSpace(text)}
	switch {
	case shape == 'D' && len(in) == 2 && !two:
		s.Input, s.Output = Fixed(in[0]), Fixed(in[1])
	case shape == 'E' && len(in) == 1 && !two:
		s.Input = Fixed(in[0])
	case shape == 'U' && len(in) == 2 && !two: // genai-bench's short form: the most of each
		s.Input, s.Output = Length{'U', 1, in[0]}, Length{'U', 1, in[1]}
	case (shape == 'N' || shape == 'U') && len(in) == 2 && two:
		_, out, err := call(string(shape) + second)
		if err != nil || len(out) != 2 {
			return Scenario{}, wrong
		}
		s.Input, s.Output = Length{shape, in[0], in[1]}, Length{shape, out[0], out[1]}
	default:
		return Scenario{}, wrong
	}
	err = s.Input.check(text)
	if s.Output != (Length{}) {
		err = errors.Join(err, s.Output.check(text))
	}
	return s, err
}

// call reads "X(1,2)".
func call(text string) (name byte, numbers []int, err error) {
	text = strings.TrimSpace(text)
	if len(text) < 4 || len(text) > 80 || text[1] != '(' || text[len(text)-1] != ')' {
		return 0, nil, errors.New("no call")
	}
	for part := range strings.SplitSeq(text[2:len(text)-1], ",") {
		n, err := strconv.Atoi(strings.TrimSpace(part))
		if err != nil || n < 0 {
			return 0, nil, errors.New("no number")
		}
		numbers = append(numbers, n)
	}
	return text[0], numbers, nil
}

func clip(s string) string { return s[:min(len(s), 80)] }

// Load is one point of a benchmark: what is sent, and how fast.
type Load struct {
	Scenario Scenario
	// Concurrency is how many clients send a request after each answer (a closed
	// loop), where Rate is 0.
	Concurrency int
	// Rate is the requests a second, whatever the answers take (an open loop). They
	// come as those of many clients who know nothing of each other: a Poisson process.
	Rate float64
	// Requests ends the point; so does Time, from the first request on, where it is not 0.
	Requests int
	Time     time.Duration
	// WarmUp is how many requests are sent first and not counted.
	WarmUp int
	// SharedPrefix is how many tokens all prompts begin with, within their length.
	SharedPrefix int
	Seed         uint64
}

// Validate returns what is out of range.
func (l Load) Validate() error {
	switch {
	case l.Rate == 0 && (l.Concurrency < 1 || l.Concurrency > MaxConcurrency):
		return fmt.Errorf("the concurrency is %d: want 1 to %d", l.Concurrency, MaxConcurrency)
	case !(l.Rate >= 0 && l.Rate <= MaxRate):
		return fmt.Errorf("the rate is %v requests a second: want more than 0, up to %d", l.Rate, MaxRate)
	case l.Requests < 1 || l.Requests > MaxRequests:
		return fmt.Errorf("%d requests: want 1 to %d", l.Requests, MaxRequests)
	case l.WarmUp < 0 || l.WarmUp > MaxRequests:
		return fmt.Errorf("%d requests to warm up: want 0 to %d", l.WarmUp, MaxRequests)
	case l.Time < 0:
		return fmt.Errorf("the time is %v: want 0 or more", l.Time)
	case l.SharedPrefix < 0 || l.SharedPrefix > MaxTokens:
		return fmt.Errorf("a shared prefix of %d tokens: want 0 to %d", l.SharedPrefix, MaxTokens)
	}
	return nil
}

// Arrivals draws when the requests of an open loop come.
type Arrivals struct {
	random Random
	rate   float64
	at     float64
}

// Arrivals are the load's.
func (l Load) Arrivals(seeded Seeded) *Arrivals {
	return &Arrivals{random: seeded(l.Seed, 1), rate: l.Rate}
}

// Next is when the next request comes, from the point's beginning on.
func (a *Arrivals) Next() time.Duration {
	a.at += a.random.ExpFloat64() / a.rate
	return time.Duration(a.at * float64(time.Second))
}

// Request is one request of a load.
type Request struct {
	Prompt string
	Input  int // tokens of the prompt, about
	Output int // tokens of the answer; 0 for the server's choice
}

// Request is the n-th of the load; those of the warm-up have numbers below 0. Equal
// loads give equal requests.
func (l Load) Request(n int, seeded Seeded) Request {
	random := seeded(l.Seed, uint64(n)<<1|1<<63)
	r := Request{Input: l.Scenario.Input.Draw(random)}
	if l.Scenario.Output != (Length{}) {
		r.Output = l.Scenario.Output.Draw(random)
	}
	shared := min(l.SharedPrefix, r.Input)
	var b strings.Builder
	b.Grow(r.Input * wordBytes)
	speak(&b, seeded(l.Seed, 0), shared)
	speak(&b, random, r.Input-shared)
	r.Prompt = strings.TrimSuffix(b.String(), " ")
	return r
}

// words are one token each for the tokenizers of language models, with the space
// before them, and four bytes, which is what a simulated engine takes for a token.
var words = strings.Fields("the and for are but not you all any can had her was one our out day get has him his how man new now old see two way who boy did its let put say she too use")

const wordBytes = 4

func speak(b *strings.Builder, random Random, tokens int) {
	for range tokens {
		b.WriteString(words[random.IntN(len(words))])
		b.WriteByte(' ')
	}
}

// Plan crosses scenarios with rates, or with concurrencies where there are no rates.
func Plan(base Load, scenarios []Scenario, concurrency []int, rates []float64) ([]Load, error) {
	if len(rates) > 0 {
		concurrency = nil
	}
	if n := len(scenarios) * (len(concurrency) + len(rates)); n > MaxPoints {
		return nil, fmt.Errorf("%d points: want up to %d", n, MaxPoints)
	}
	var out []Load
	for _, s := range scenarios {
		for _, l := range slices.Concat(each(base, concurrency, func(l *Load, n int) { l.Concurrency = n }),
			each(base, rates, func(l *Load, r float64) { l.Rate, l.Concurrency = r, 0 })) {
			l.Scenario = s
			if l.Rate == 0 && len(rates) > 0 {
				return nil, errors.New("the rate is 0 requests a second: want more")
			}
			if err := l.Validate(); err != nil {
				return nil, err
			}
			out = append(out, l)
		}
	}
	return out, nil
}

func each[T any](base Load, values []T, set func(*Load, T)) (out []Load) {
	for _, v := range values {
		l := base
		set(&l, v)
		out = append(out, l)
	}
	return out
}
