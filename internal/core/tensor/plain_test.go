package tensor

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
)

// numberTexts are numbers in every form people's encoders write, and what
// looks like one.
func numberTexts(random *rand.Rand, n int) []string {
	texts := []string{"0.0", "-0.0", "9.9", "10.0", "99.99999999", "01.5", "00.5", "1.", ".5", "-.5", "--1.5", "1.5.5", "1.-5", "+1.5",
		"1.5e3", "1.5E-3", "100.25", "0.1234567890123456", "0.12345678901234567", "99.9999999999999999", "16777217.0", "1.00000005960464477539",
		"0.30000001192092896", "3.4028236e38", "1:5", "1.5/", "1.;", "1./2", "null", "1", "-7", "1.00000017881393432617187499",
		"12.3456789a", "1.\x805", "1.1234567\x8a"}
	for range n {
		f := (random.Float64() - 0.5) * math.Pow(10, float64(random.IntN(6)-1))
		texts = append(texts, strconv.FormatFloat(f, 'f', random.IntN(19), 64), strconv.FormatFloat(f, 'f', -1, 32), strconv.FormatFloat(f, 'g', -1, 64))
	}
	return texts
}

// TestPlainNumbersAreStrconvs puts each number between others, far enough from
// the end for the quick reader, and near it, where only the careful one reads.
func TestPlainNumbersAreStrconvs(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for _, text := range numberTexts(random, 20_000) {
		for _, form := range []string{"[1.5,%s,2.5]", "[1.5, %s, 2.5]", "[%s,1.5,2.5]", "[ %s ,1.5,2.5]", "[1.5,2.5,%s]"} {
			for _, end := range []string{"", strings.Repeat(" ", 64)} {
				at := strings.Count(form[:strings.Index(form, "%")], ",")
				checkFloats(t, fmt.Sprintf(form, text)+end, text, at)
			}
		}
	}
}

func checkFloats(t *testing.T, data, text string, i int) {
	t.Helper()
	want, wantErr := strconv.ParseFloat(text, 64)
	narrow, narrowErr := strconv.ParseFloat(text, 32)
	valid := jsonNumber(text)
	var v Values
	if _, err := readValues(&scanner{data: []byte(data)}, FP64, &v, 3, true); text != "null" && (err == nil) != (valid && wantErr == nil) {
		t.Fatalf("%q as FP64: error %v; strconv has %v", data, err, wantErr)
	}
	if _, err := readValues(&scanner{data: []byte(data)}, FP32, &v, 3, true); text != "null" && (err == nil) != (valid && narrowErr == nil) {
		t.Fatalf("%q as FP32: error %v; strconv has %v", data, err, narrowErr)
	}
	if !valid || wantErr != nil || narrowErr != nil {
		return
	}
	if math.Float64bits(v.Float64[i]) != math.Float64bits(want) {
		t.Fatalf("%q: element %d as FP64 is %v, want %v", data, i, v.Float64[i], want)
	}
	if math.Float32bits(v.Float32[i]) != math.Float32bits(float32(narrow)) {
		t.Fatalf("%q: element %d as FP32 is %v, want %v", data, i, v.Float32[i], float32(narrow))
	}
}

// jsonNumber is JSON's grammar of numbers, written once more.
func jsonNumber(text string) bool {
	text = strings.TrimPrefix(text, "-")
	digits := func() int {
		n := 0
		for n < len(text) && text[n] >= '0' && text[n] <= '9' {
			n++
		}
		return n
	}
	n := digits()
	if n == 0 || (n > 1 && text[0] == '0') {
		return false
	}
	if text = text[n:]; strings.HasPrefix(text, ".") {
		text = text[1:]
		if n = digits(); n == 0 {
			return false
		}
		text = text[n:]
	}
	if text != "" && (text[0] == 'e' || text[0] == 'E') {
		text = strings.TrimLeft(text[1:], "+-")
		if n = digits(); n == 0 {
			return false
		}
		text = text[n:]
	}
	return text == ""
}
