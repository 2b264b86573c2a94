"""What a request says about a hyper-parameter search: orders, refusals, and sentences that only look like one."""

from __future__ import annotations

import pytest

from vidqa.spec.request import Wish, read

OFF = """\
No hyper-parameter search
I don't want AutoML
skip HPO
turn off HPO
no tuning
turn off AutoML
Please DISABLE automl for this
no HPO
a plain training run
turn AutoML off
without HPO
fine-tune on my warehouse clips, no HPO
fine-tune on my videos without AutoML, please
Train on data/ and skip the hyperparameter search.
AutoML off
automl: off
AutoML=off
automl = false
disable Auto-ML
AutoML disabled, 8 GPUs
with AutoML turned off
with hyperparameter tuning switched off
don't run a sweep
do not run any hyper-parameter sweeps
No sweeps, no HPO, just train.
no need for AutoML
there is no need for a hyperparameter search
we don't need HPO here
HPO is not needed
AutoML isn't necessary
hyper-parameter optimisation is not required
never start an HPO job
I do not want you to run any kind of AutoML
avoid AutoML
leave out the hyper-parameter search
leave AutoML out
opt out of AutoML
please do not use optuna
no Bayesian optimization
no grid search, use the defaults
without any hyperparameter optimization
w/o HPO
don’t tune hyperparameters
do not tune the learning rate
don't search for the best learning rate
no learning-rate sweep
no LR search
train directly
go straight to training
plain fine-tuning on my clips
vanilla SFT please
just train it
just train, please
one training run, no trials
a single training run
stop the AutoML thing, I want a normal training
can you train without AutoML?
could you skip the HPO please?
If possible, no AutoML.
Train the model on my videos. No AutoML!
no auto ml
don't bother with HPO
forget about the sweep
HPO: no
No, do not run HPO
training instead of a hyper-parameter search
train rather than sweep
use the default hyperparameters
keep HPO off
set automl to off
AutoML should be off
AutoML must be disabled
make sure AutoML is off
fine-tune Cosmos-Reason2 on clips of a door. I'd like no hyperparameter search.
neither AutoML nor HPO
no HPO or AutoML
exclude hyperparameter tuning
drop the sweep
skip search
without tuning
HPO-free training please
cancel the hyper-parameter search and train
We can do without AutoML.
don't use AutoML
disable HPO
just train
no hyper-parameter search
SKIP THE TUNING
Just train on my videos
just fine-tune it on data/videos, 8 frames
no automl and no hpo
fine-tune it, don't spend time on HPO
don't waste GPU hours on hyperparameter search
please refrain from HPO
automl_policy: off
--automl-policy off
--no-automl
no-hpo
a single run, default settings
I'd rather you didn't run HPO
"""
ON = """\
use AutoML
fine-tune with AutoML
run a hyperparameter search
do not disable AutoML
please don't turn off AutoML
never skip HPO
don't train without AutoML
not without HPO
AutoML must not be turned off
AutoML on
enable HPO
automl: true
find the best learning rate
tune the hyper-parameters
sweep over learning rates
Start an HPO job on 8 GPUs
The lights turn off in the video; use AutoML
find when the machine is turned off with AutoML
Do not disable AutoML
do a hyperparameter search with 20 trials
run 20 trials
try 20 configurations
train with HPO on 4 GPUs, at most 10 hours
keep AutoML enabled
use bayesian search with 30 trials
"""
UNCLEAR = """\
how does AutoML work
Should I use AutoML?
What is HPO?
is AutoML off?
do I need a hyperparameter search?
explain AutoML and HPO
I am not sure whether AutoML is worth it
last time AutoML was disabled
maybe no HPO
if it is expensive, skip HPO
the docs say that AutoML can be disabled
no HPO for the first model, AutoML for the second
We will do HPO later
not just plain training
kein AutoML
explain plain training
AutoML
what does turn off AutoML do
no people are in these videos of AutoML
HPO yes or no
do HPO jobs take long
use AutoML and no HPO
"""
NONE = """\
fine-tune on my videos
there is no HPOLIST here
explain training plainly
turn offers
Fine-tuning Cosmos-Reason2 without LoRA
no fine-tuning of the vision tower
does the worker turn off the machine?
videos of machines that are turned off
train with no search index
skip the first 10 videos
instruction tuning on my data
no tuning fork is visible
the questions are about a person who is disabled
do not freeze the vision tower
no validation
learning rate 1e-5, 3 epochs
train without validation and disable checkpoints
my clips show a street sweeper
search for broken videos and train on the rest
without sound
avoid long videos
just train the projector
set the learning rate to 1e-5
only train on the first 10 videos
compare 20 videos
one run per camera
"""


@pytest.mark.parametrize("request_", OFF.splitlines())
def test_the_search_is_refused(request_: str) -> None:
    assert read(request_).wish is Wish.OFF


@pytest.mark.parametrize("request_", ON.splitlines())
def test_the_search_is_asked_for(request_: str) -> None:
    assert read(request_).wish is Wish.ON


@pytest.mark.parametrize("request_", UNCLEAR.splitlines())
def test_words_about_a_search_that_are_no_clear_order(request_: str) -> None:
    assert read(request_).wish is Wish.UNCLEAR


@pytest.mark.parametrize("request_", NONE.splitlines())
def test_words_that_are_not_about_a_search(request_: str) -> None:
    assert read(request_).wish is Wish.NONE


def test_no_phrase_stands_in_two_tables() -> None:
    every = [*OFF.splitlines(), *ON.splitlines(), *UNCLEAR.splitlines(), *NONE.splitlines()]
    assert len(every) == len(set(every)) and len(OFF.splitlines()) >= 60 and len(every) - len(OFF.splitlines()) >= 20


@pytest.mark.parametrize("request_", ["", "\n", "no " * 20_000 + "AutoML", "AutoML, " * 5_000, "\x00off AutoML"])
def test_any_text_is_read(request_: str) -> None:
    assert isinstance(read(request_).wish, Wish)
