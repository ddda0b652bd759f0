// Actors by Dapr's SDK for Go that count, by calls, by a timer and by a reminder.
//
//	daprgoactors host PORT    runs them
//	daprgoactors count ID     calls one, and says what it has counted
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"reflect"
	"strings"
	"time"

	"github.com/dapr/go-sdk/actor"
	"github.com/dapr/go-sdk/client"
	daprhttp "github.com/dapr/go-sdk/service/http"
)

const (
	actorType = "Counter"
	soon      = "200ms"
)

// Told is what a counter says of itself.
type Told struct {
	Count    int      `json:"count"`
	Ticks    int      `json:"ticks"`
	Reminded []string `json:"reminded"`
}

func main() {
	log.SetOutput(os.Stderr)
	if len(os.Args) != 3 {
		log.Fatal("usage: daprgoactors host PORT, daprgoactors count ID")
	}
	var err error
	switch last := os.Args[2]; os.Args[1] {
	case "host":
		err = host(last)
	case "count":
		err = count(last)
	default:
		err = fmt.Errorf("no such command: %s", os.Args[1])
	}
	if err != nil {
		log.Fatal(err)
	}
}

func host(port string) error {
	dapr, err := client.NewClient()
	if err != nil {
		return err
	}
	service := daprhttp.NewService("127.0.0.1:" + port)
	service.RegisterActorImplFactoryContext(func() actor.ServerContext {
		return &Counter{dapr: dapr}
	})
	return service.Start()
}

// Counter is the actor: the SDK calls its exported methods. What a method that returns no value
// changes of the state, the SDK does not save.
type Counter struct {
	actor.ServerImplBaseCtx
	dapr  client.Client
	ticks int
}

// Type names the type.
func (c *Counter) Type() string {
	return actorType
}

// Add counts.
func (c *Counter) Add(ctx context.Context, more int) (int, error) {
	var count int
	if err := c.kept(ctx, "count", &count); err != nil {
		return 0, err
	}
	count += more
	return count, c.GetStateManager().Set(ctx, "count", count)
}

// Told says what it has counted.
func (c *Counter) Told(ctx context.Context) (*Told, error) {
	told := Told{Ticks: c.ticks}
	err := errors.Join(c.kept(ctx, "count", &told.Count), c.kept(ctx, "reminded", &told.Reminded))
	return &told, err
}

// Tick has a timer fire, or no more.
func (c *Counter) Tick(ctx context.Context, on bool) (bool, error) {
	if !on {
		gone := client.UnregisterActorTimerRequest{ActorType: actorType, ActorID: c.ID(), Name: "clock"}
		return on, c.dapr.UnregisterActorTimer(ctx, &gone)
	}
	return on, c.dapr.RegisterActorTimer(ctx, &client.RegisterActorTimerRequest{
		ActorType: actorType, ActorID: c.ID(), Name: "clock",
		DueTime: soon, Period: soon, CallBack: "OnTick", Data: []byte("2"),
	})
}

// OnTick is what the timer calls.
func (c *Counter) OnTick(_ context.Context, step int) error {
	c.ticks += step
	return nil
}

// Remind has a reminder fire, or no more.
func (c *Counter) Remind(ctx context.Context, on bool) (bool, error) {
	if !on {
		gone := client.UnregisterActorReminderRequest{ActorType: actorType, ActorID: c.ID(), Name: "bell"}
		return on, c.dapr.UnregisterActorReminder(ctx, &gone)
	}
	return on, c.dapr.RegisterActorReminder(ctx, &client.RegisterActorReminderRequest{
		ActorType: actorType, ActorID: c.ID(), Name: "bell",
		DueTime: soon, Period: soon, Data: []byte("ding"),
	})
}

// ReminderCall is what the reminder calls.
func (c *Counter) ReminderCall(name string, data []byte, dueTime, period string) {
	ctx := context.Background()
	var rung []string
	err := c.kept(ctx, "reminded", &rung)
	if err == nil {
		err = c.GetStateManager().Set(ctx, "reminded", append(rung, name+" "+string(data)))
	}
	if err = errors.Join(err, c.SaveState(ctx)); err != nil {
		log.Printf("reminder %s: %v", name, err)
	}
}

// Fail fails.
func (c *Counter) Fail(context.Context) (bool, error) {
	return false, errors.New("out of count")
}

// What is kept under a name, where there is something.
func (c *Counter) kept(ctx context.Context, name string, value any) error {
	isThere, err := c.GetStateManager().Contains(ctx, name)
	if err != nil || !isThere {
		return err
	}
	return c.GetStateManager().Get(ctx, name, value)
}

// The counter as the SDK calls it: it makes the functions.
type counter struct {
	id     string
	Add    func(context.Context, int) (int, error)
	Told   func(context.Context) (*Told, error)
	Tick   func(context.Context, bool) (bool, error)
	Remind func(context.Context, bool) (bool, error)
	Fail   func(context.Context) (bool, error)
}

func (c *counter) Type() string { return actorType }
func (c *counter) ID() string   { return c.id }

func count(id string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	dapr, err := client.NewClient()
	if err != nil {
		return err
	}
	defer dapr.Close()
	if err := dapr.Wait(ctx, 30*time.Second); err != nil {
		return err
	}
	one, other := &counter{id: id}, &counter{id: id + " other"}
	dapr.ImplActorClientStub(one)
	dapr.ImplActorClientStub(other)
	for _, each := range []struct {
		counter    *counter
		more, then int
	}{{one, 3, 3}, {one, 4, 7}, {other, 1, 1}} {
		if now, err := each.counter.Add(ctx, each.more); err != nil || now != each.then {
			return fmt.Errorf("%d and not %d: %w", now, each.then, err)
		}
	}
	_, err = one.Fail(ctx)
	if err == nil || !strings.Contains(err.Error(), "error from actor service: (500)") {
		return fmt.Errorf("it fails otherwise: %w", err)
	}
	return watch(ctx, one)
}

func watch(ctx context.Context, one *counter) error {
	if _, err := one.Tick(ctx, true); err != nil {
		return err
	}
	if _, err := until(ctx, one, func(told *Told) bool { return told.Ticks >= 4 }); err != nil {
		return err
	}
	_, ticked := one.Tick(ctx, false)
	_, reminds := one.Remind(ctx, true)
	told, err := until(ctx, one, func(told *Told) bool { return len(told.Reminded) >= 2 })
	if err = errors.Join(ticked, reminds, err); err != nil {
		return err
	}
	if told.Reminded[0] != "bell ding" {
		return fmt.Errorf("it is reminded of %q", told.Reminded)
	}
	_, reminds = one.Remind(ctx, false)
	told, err = one.Told(ctx)
	if err = errors.Join(reminds, err); err != nil {
		return err
	}
	time.Sleep(600 * time.Millisecond)
	if now, err := one.Told(ctx); err != nil || !reflect.DeepEqual(now, told) {
		return fmt.Errorf("it goes on: %v, %v: %w", told, now, err)
	}
	fmt.Println(told.Count)
	return nil
}

func until(ctx context.Context, one *counter, holds func(*Told) bool) (*Told, error) {
	for {
		told, err := one.Told(ctx)
		if err != nil || holds(told) {
			return told, err
		}
		time.Sleep(50 * time.Millisecond)
	}
}
