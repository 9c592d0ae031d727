// The kubelet's own prober, one probe a line: reads JSON from stdin and answers each line with its verdict as JSON. The
// comparison in crates/probe/tests/kubelet.rs runs it.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/probe"
	grpcprobe "k8s.io/kubernetes/pkg/probe/grpc"
	httpprobe "k8s.io/kubernetes/pkg/probe/http"
)

// A question is a probe as a container's field has it, and the address of the pod.
type question struct {
	PodIP         string            `json:"podIP"`
	TimeoutMillis int64             `json:"timeoutMillis"`
	HTTPGet       *v1.HTTPGetAction `json:"httpGet"`
	GRPC          *v1.GRPCAction    `json:"grpc"`
}

type answer struct {
	Succeeded bool   `json:"succeeded"`
	Message   string `json:"message"`
}

// How often a probe whose run ended in an error is run (maxProbeRetries, pkg/kubelet/prober/prober.go).
const maxProbeRetries = 3

var (
	// As newProber of pkg/kubelet/prober/prober.go makes them.
	httpProber = httpprobe.New(false)
	grpcProber = grpcprobe.New()
)

func main() {
	klog.LogToStderr(false)
	klog.SetOutput(os.Stderr)
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	var answers []*answer
	var running sync.WaitGroup
	for lines.Scan() {
		var asked question
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			fmt.Fprintln(os.Stderr, "malformed question:", err)
			os.Exit(1)
		}
		given := new(answer)
		answers = append(answers, given)
		// At once, since some servers answer slowly or never.
		running.Go(func() { *given = ask(asked) })
	}
	running.Wait()
	for _, given := range answers {
		line, err := json.Marshal(given)
		if err != nil {
			panic(err)
		}
		fmt.Println(string(line))
	}
}

// What runProbeWithRetries and probe of pkg/kubelet/prober/prober.go make of the results: an error or Unknown has failed,
// and a warning succeeded.
func ask(asked question) answer {
	var result probe.Result
	var message string
	var err error
	for range maxProbeRetries {
		if result, message, err = run(asked); err == nil {
			break
		}
	}
	if err != nil {
		return answer{Succeeded: false, Message: err.Error()}
	}
	return answer{Succeeded: result == probe.Success || result == probe.Warning, Message: message}
}

// The cases of runProbe of pkg/kubelet/prober/prober.go, with both feature gates on.
func run(asked question) (probe.Result, string, error) {
	timeout := time.Duration(asked.TimeoutMillis) * time.Millisecond
	if get := asked.HTTPGet; get != nil {
		request, err := httpprobe.NewRequestForHTTPGetAction(get, &v1.Container{}, asked.PodIP, "probe")
		if err != nil {
			return probe.Unknown, "", err
		}
		if get.Protocol != nil && *get.Protocol == v1.HTTPProtocolHTTP2 {
			return httpProber.ProbeH2C(request, timeout)
		}
		return httpProber.Probe(request, timeout)
	}
	service := ""
	if asked.GRPC.Service != nil {
		service = *asked.GRPC.Service
	}
	options := grpcprobe.ProbeOptions{UseTLS: asked.GRPC.Mode != nil && *asked.GRPC.Mode == v1.GRPCProbeModeTLS}
	return grpcProber.Probe(asked.PodIP, service, int(asked.GRPC.Port), timeout, options)
}
