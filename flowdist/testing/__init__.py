"""The test kit: strategies of Hypothesis, properties of the control core, and the bench that proves them."""
